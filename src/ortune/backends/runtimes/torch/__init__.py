"""PyTorch: modules with their weights, behind the Session protocol, and written as ONNX."""
