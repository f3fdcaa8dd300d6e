"""Nodes that compute nothing, constants, reshapes and masks removed."""
