"""Rewrites that compute the same: patterns, rules and their parts."""
