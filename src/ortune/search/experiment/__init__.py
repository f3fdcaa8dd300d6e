"""Prepare one job, build and measure one plan, and keep the ledger."""
