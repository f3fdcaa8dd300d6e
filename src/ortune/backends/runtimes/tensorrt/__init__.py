"""TensorRT by its own Python API: engines built, read back and run on CUDA streams."""
