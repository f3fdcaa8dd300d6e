"""The highest rate that keeps a limit on a percentile: decisions, no requests."""

from __future__ import annotations

import math
from collections.abc import Generator

_SPARE = 1.15
"""Arrivals are drawn: so many times the requests that are needed are asked for."""
_FEWEST = 100
STEP = 1.08
"""Rates closer than this are not told apart by asking; between them the percentile decides."""


def requests(percentile: float, beyond: int) -> int:
    """Return how many requests tell a percentile by so many answers beyond it."""
    return max(_FEWEST, math.ceil(round(_SPARE * beyond / (1 - percentile / 100), 6)))


def sustained(
    limit: float, start: float, least: float, most: float
) -> Generator[float, float, float]:
    """Find the highest rate that keeps a limit: yield rates, be sent the percentile at each.

    Rates grow, or shrink, from the first by steps that grow themselves; between one that keeps
    the limit and one that does not they are halved until they are a `STEP` apart. There the
    logarithm of the percentile is taken to be a line.

    Args:
        limit: In the unit of what is sent.
        start: Where to begin.
        least: A rate that is not gone below, and returned where none keeps the limit.
        most: A rate that is not gone above, and returned where all keep it.
    """
    low: tuple[float, float] | None = None
    high: tuple[float, float] | None = None
    rate, stride = min(max(start, least), most), STEP
    while True:
        found = yield rate
        if found <= limit:
            low = rate, found
        else:
            high = rate, found
        if low and low[0] >= most:
            return most
        if high and high[0] <= least:
            return least
        if low and high:
            if high[0] <= low[0] * STEP * 1.001:
                return _between(low, high, limit)
            rate = math.sqrt(low[0] * high[0])
        else:
            rate = min(max(rate * stride if low else rate / stride, least), most)
            stride = min(stride**2, 4.0)


def _between(low: tuple[float, float], high: tuple[float, float], limit: float) -> float:
    if not math.isfinite(high[1]) or low[1] <= 0:
        return low[0]
    share = math.log(limit / low[1]) / math.log(high[1] / low[1])
    return float(low[0] * (high[0] / low[0]) ** share)
