"""Plugin folder: in which order a search tries plans, one policy a file."""
