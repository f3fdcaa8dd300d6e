"""Sessions of the runtimes that backends stand for."""
