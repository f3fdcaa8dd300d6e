"""Rounding of weights by what it does to a layer's outputs."""
