"""Samples in an order: models with state are fed what they gave at the step before."""
