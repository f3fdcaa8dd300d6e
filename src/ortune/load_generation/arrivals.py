"""When calls arrive that nobody paces: the one place where Poisson arrivals are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BURST_S, _SHORTEST_BURST_S = 1.0, 0.05
_SHORT_SEARCH_S = 60.0


def arrival_times(
    rate: float, count: int, seed: Sequence[int], *, poisson: bool = True
) -> NDArray[np.float64]:
    """Return the intended starts of calls, nanoseconds from the beginning of their schedule.

    Args:
        rate: Calls a second.
        count: How many.
        seed: Equal seeds give equal schedules.
        poisson: Independent callers, whose gaps are exponential; else the gaps are equal.
    """
    gaps = np.random.default_rng(seed).exponential(size=count) if poisson else np.ones(count)
    return np.cumsum(gaps) * 1e9 / rate


def burst_seconds(seconds: float) -> float:
    """Return how long a burst by the clock takes: as long as was asked for, else a second."""
    return seconds or _BURST_S


def fit_burst(seconds: float, search_s: float) -> float:
    """Return the seconds to ask of a burst: less than by itself where the search is short.

    A finalist has five pairs of processes with eight bursts each and more, 40 s by themselves.
    """
    if seconds or search_s >= _SHORT_SEARCH_S:
        return seconds
    return max(_SHORTEST_BURST_S, _BURST_S * search_s / _SHORT_SEARCH_S)
