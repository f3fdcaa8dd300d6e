"""One onnx_ir model: load, look, edit, check, save."""
