"""OpenVINO, as onnxruntime's plug-in provider and by its own runtime."""
