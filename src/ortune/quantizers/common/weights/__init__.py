"""Weights stored as integers, in blocks or channels."""
