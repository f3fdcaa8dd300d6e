"""Dimensions fixed, freed and named."""
