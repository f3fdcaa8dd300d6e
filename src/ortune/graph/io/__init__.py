"""Models from files and to files: weights mapped, names unique, checked."""
