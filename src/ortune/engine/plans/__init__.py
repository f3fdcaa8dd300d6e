"""Plans of a bundle: which runs here, with which of its models."""
