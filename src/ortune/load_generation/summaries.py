"""Percentiles with enough samples behind them, and the order in which shapes are listed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ENOUGH = 10


def percentile(ns: Sequence[int], p: float) -> float | None:
    """Return a percentile; None for a tail that fewer than 10 samples lie in, or of nothing."""
    beyond = round(len(ns) * min(p, 100 - p) / 100, 6)
    if not len(ns) or (p != 50 and beyond < _ENOUGH):
        return None
    return float(np.percentile(np.asarray(ns, np.float64), p))


def tails(ns: Sequence[int], name: str) -> dict[str, float | None]:
    """Return ``{name}_p50_ns``, ``_p90_ns`` and ``_p99_ns``."""
    return {f"{name}_p{p}_ns": percentile(ns, p) for p in (50, 90, 99)}


def size(shape: str) -> tuple[list[int], str]:
    """Return what sorts a written shape by its numbers: ``1x8`` before ``1x16``."""
    digits = "".join(c if c.isdigit() else " " for c in shape)
    return [int(number) for number in digits.split()], shape
