"""From a PyTorch module to an ONNX file that answers like it."""
