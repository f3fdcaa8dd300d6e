"""Layers folded, merged or replaced by equal ones."""
