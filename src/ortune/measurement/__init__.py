"""Measuring and verifying: the worker process, paired timing, statistics."""
