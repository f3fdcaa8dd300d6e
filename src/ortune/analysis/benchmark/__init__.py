"""Time models on backends side by side, and compare saved results."""
