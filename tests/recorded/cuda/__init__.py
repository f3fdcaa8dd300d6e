"""CUDA of the recorded API."""
