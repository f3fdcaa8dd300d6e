"""Paired timing of live processes, and the statistics behind a ratio."""
