"""A plan's session settings as programs in the languages that onnxruntime has an API for."""
