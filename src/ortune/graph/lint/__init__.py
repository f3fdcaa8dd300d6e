"""Rules that find what is odd in a model."""
