"""Toy policies."""
