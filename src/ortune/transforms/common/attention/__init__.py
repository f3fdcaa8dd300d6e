"""Recognize attention written out in primitive operators."""
