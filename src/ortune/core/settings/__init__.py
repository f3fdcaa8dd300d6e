"""Requests as settings files."""
