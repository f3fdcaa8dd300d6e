"""Do two small samples differ? The exact rank-sum test: no shape of the noise is assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache


def samples_differ(first: Sequence[float], second: Sequence[float]) -> bool:
    """Say whether two samples differ at a two-sided level of 1 %.

    With 5 values each only samples that do not overlap differ at 1 %; with fewer none do. Equal
    values count half (Mann and Whitney 1947, doi:10.1214/aoms/1177730491).
    """
    wins = sum((a > b) + 0.5 * (a == b) for a in first for b in second)
    fewer = math.floor(min(wins, len(first) * len(second) - wins) + 0.5)
    below = sum(_count_orders(len(first), len(second), u) for u in range(fewer + 1))
    return 2 * below / math.comb(len(first) + len(second), len(first)) <= 0.01


@cache
def _count_orders(first: int, second: int, wins: int) -> int:
    """Count the orders of two samples in which the first has so many wins over the second."""
    if wins < 0:
        return 0
    if first == 0 or second == 0:
        return int(wins == 0)
    return _count_orders(first - 1, second, wins - second) + _count_orders(first, second - 1, wins)
