"""A page that runs a model in the browser by onnxruntime-web."""
