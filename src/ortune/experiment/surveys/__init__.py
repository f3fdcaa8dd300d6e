"""Regions of a plan measured one at a time, and the journal of it in the run's folder."""
