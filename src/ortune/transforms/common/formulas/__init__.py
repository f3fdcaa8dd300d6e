"""Recognize formulas written out in primitive operators."""
