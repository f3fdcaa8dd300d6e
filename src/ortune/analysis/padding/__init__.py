"""Find padding in samples, prove that it is without effect, and choose lengths."""
