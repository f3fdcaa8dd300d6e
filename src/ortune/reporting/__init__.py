"""Sections yield blocks; the writers here turn blocks into HTML, Markdown and terminal text."""
