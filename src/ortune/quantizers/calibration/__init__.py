"""Observe tensors on samples in a worker, and keep the ranges found."""
