"""Convert a model as told, or apply named steps to it; each result is checked."""
