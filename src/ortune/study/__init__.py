"""The search: what is tried, in which order, and what is remembered."""
