"""Triton's model repository: written as text, read back, and run under the release's runtime."""
