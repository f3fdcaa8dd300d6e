"""Warn a caller at their own line, however many of ortune's calls lie between."""

from __future__ import annotations

import sys
import warnings


def warn(text: str) -> None:
    """Issue a `RuntimeWarning` at the first line outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ortune."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)
