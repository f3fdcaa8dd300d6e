"""Percentile bootstrap over groups of samples: an interval that proves nothing."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_TURNS = 500


def compute_interval(
    statistic: Callable[[Rows], float], members: Sequence[Rows], error: float, seed: int = 0
) -> tuple[float, float]:
    """Return the interval of a statistic, each end one-sided at `error`; see `draw_estimates`."""
    if len(members) < 2:
        return -math.inf, math.inf
    estimates = draw_estimates(statistic, members, seed)
    low, high = np.percentile(estimates, [100 * error, 100 * (1 - error)])
    return float(low), float(high)


def draw_estimates(
    statistic: Callable[[Rows], float], members: Sequence[Rows], seed: int = 0
) -> Floats:
    """Return the statistic of draws from two groups or more.

    Widened for few groups by sqrt(n / (n - 1)) (Davison and Hinkley 1997, section 2.5). It is too
    narrow where what matters is rare.

    Args:
        statistic: Of the samples at these rows.
        members: Rows of each group.
    """
    n = len(members)
    value = statistic(np.concatenate(members))
    rng = np.random.default_rng(seed)
    draw = _make_resampler(members)
    estimates = np.array([statistic(draw(rng.integers(0, n, n))) for _ in range(_TURNS)])
    return np.asarray(value + (estimates - value) * math.sqrt(n / (n - 1)), np.float64)


def _make_resampler(members: Sequence[Rows]) -> Callable[[Rows], Rows]:
    """Return a function from groups to their rows, without a loop over groups."""
    rows, sizes = np.concatenate(members), np.array([len(group) for group in members])
    starts = np.cumsum(sizes) - sizes
    if len(rows) == len(members):
        return lambda chosen: rows[chosen]

    def draw(chosen: Rows) -> Rows:
        long = sizes[chosen]
        ends = np.cumsum(long)
        offsets = np.arange(ends[-1]) - np.repeat(ends - long, long)
        return np.asarray(rows[np.repeat(starts[chosen], long) + offsets])

    return draw
