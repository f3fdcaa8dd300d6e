"""Precision by region in blocks and pictures: what was measured, what a search made of it."""
