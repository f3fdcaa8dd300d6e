"""Batch inference: a model over many rows, on this machine or on Ray."""
