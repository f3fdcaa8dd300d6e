"""Precision by region, as blocks and as a picture: what was surveyed, what a search made of it."""
