"""The Open Inference Protocol v2 as bytes and messages: parsed, checked, written; no sockets."""
