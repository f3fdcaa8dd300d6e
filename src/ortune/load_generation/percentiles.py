"""Percentiles as they may be told: a tail that few samples lie in has none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ENOUGH = 10


def tails(ns: Sequence[int], name: str) -> dict[str, float | None]:
    """Return ``{name}_p50_ns``, ``_p90_ns`` and ``_p99_ns``.

    None where fewer than 10 samples lie beyond it.
    """
    values = np.asarray(ns, np.float64)
    return {
        f"{name}_p{p}_ns": float(np.percentile(values, p))
        if len(ns) and (p == 50 or len(ns) * (100 - p) / 100 >= _ENOUGH)
        else None
        for p in (50, 90, 99)
    }
