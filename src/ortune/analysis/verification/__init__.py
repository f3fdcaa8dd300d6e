"""Do two models answer alike, and where do they part."""
