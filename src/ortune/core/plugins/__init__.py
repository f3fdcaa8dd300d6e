"""Plugins: frozen dataclasses found by listing folders, spelled and stored."""
