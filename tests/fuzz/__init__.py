"""Hostile input for every reader: drawn from a seed, each one under a watchdog."""
