"""How long a burst is of a workload that runs by the clock."""

from __future__ import annotations

_LONG_S, _LEAST_S = 1.0, 0.05
_SHORT_SEARCH_S = 60.0


def length(seconds: float) -> float:
    """Return the seconds of a burst: those given, or 1 where none are."""
    return seconds or _LONG_S


def fitting(seconds: float, total: float) -> float:
    """Return what to give for a search of `total` seconds: less than by itself where it is short.

    A finalist has five pairs of processes with eight bursts each and more, 40 s by themselves.
    """
    if seconds or total >= _SHORT_SEARCH_S:
        return seconds
    return max(_LEAST_S, _LONG_S * total / _SHORT_SEARCH_S)
