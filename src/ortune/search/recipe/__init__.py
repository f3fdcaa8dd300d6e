"""Building a model from a recipe: every step a transaction."""
