"""Backends that misbehave on purpose, and one with a scripted clock."""
