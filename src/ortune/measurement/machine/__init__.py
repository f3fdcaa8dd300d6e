"""Readings of this machine: load, counters, memory, energy, noise."""
