"""Shapes and small integer values known without running a model."""
