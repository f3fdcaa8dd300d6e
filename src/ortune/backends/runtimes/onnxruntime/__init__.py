"""onnxruntime: sessions, keys, custom operators, traces and records."""
