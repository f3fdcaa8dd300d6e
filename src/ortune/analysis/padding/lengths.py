"""Which lengths to cut padded calls to: an exact choice. Pure functions over numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np


def choose(
    lengths: Sequence[int],
    width: int,
    count: int,
    cost: Callable[[int], float] = float,
    multiple: int = 1,
) -> tuple[int, ...]:
    """Return at most `count` buckets below `width` that make all calls together cheapest.

    Dynamic programming over the distinct lengths, rounded up: for every number of buckets and
    every length the cheapest way to serve all calls up to it. Calls beyond the last bucket run at
    `width`, which costs no bucket.

    Args:
        lengths: Real positions of every call.
        width: What calls are padded to.
        cost: Of one call at a length; grows with it.
    """
    calls = Counter(min(width, -(-n // multiple) * multiple) for n in lengths)
    places = [n for n in sorted(calls) if n < width]
    upto = np.cumsum([0, *(calls[n] for n in places)])
    whole = cost(width)

    @cache
    def best(end: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Serve the first `end` lengths with at most `left` buckets."""
        if not end:
            return 0.0, ()
        if not left:
            return float("inf"), ()
        price = cost(places[end - 1])
        found = []
        for start in range(end):
            before, chosen = best(start, left - 1)
            total = before + price * float(upto[end] - upto[start])
            found.append((total, (*chosen, places[end - 1])))
        return min(found, key=lambda one: (one[0], len(one[1])))

    ends = [
        (best(end, count)[0] + whole * float(upto[-1] - upto[end]), best(end, count)[1])
        for end in range(len(places) + 1)
    ]
    return min(ends, key=lambda one: (one[0], len(one[1])))[1]


def served(length: int, buckets: Sequence[int], width: int) -> int:
    """Return the length that a call is computed at."""
    return next((n for n in buckets if length <= n < width), width)


def share(
    lengths: Sequence[int],
    widths: Sequence[int],
    buckets: Sequence[int],
    cost: Callable[[int], float] = float,
) -> float:
    """Return the cost of all calls in buckets, as a share of their cost as padded."""
    found = sum(cost(served(n, buckets, w)) for n, w in zip(lengths, widths, strict=True))
    return found / sum(cost(w) for w in widths)


def between(measured: Mapping[int, float]) -> Callable[[int], float]:
    """Return the cost at any length from a few that were measured, by straight lines.

    Never falling: a length cannot be cheaper than a shorter one, whatever a timing says. Beyond
    the measured ones the nearest counts.
    """
    at = sorted(measured)
    costs = np.maximum.accumulate([measured[n] for n in at])
    return lambda length: float(np.interp(length, at, costs))
