"""A negative control."""
