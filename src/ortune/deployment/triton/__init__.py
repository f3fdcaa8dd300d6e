"""Triton's model repository: written, read back, run under the release's runtime."""
