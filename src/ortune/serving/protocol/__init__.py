"""The Open Inference Protocol as bytes and messages: parsed, checked, written; no sockets."""
