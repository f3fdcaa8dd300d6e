"""Read and edit an onnx_ir graph in place."""
