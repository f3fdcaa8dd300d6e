"""What waits in front of a model."""
