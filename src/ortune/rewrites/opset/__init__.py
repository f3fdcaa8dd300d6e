"""Models moved between opset versions, and function bodies."""
