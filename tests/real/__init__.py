"""Real pretrained models with real labels."""
