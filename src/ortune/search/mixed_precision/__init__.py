"""Precision by region: pieces of a network that change precision together."""
