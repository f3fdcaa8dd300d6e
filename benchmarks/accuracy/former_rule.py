"""The former rule, for comparison: Wilson's interval or a percentile bootstrap of the mean.

It called two samples proof, and rare failures never showed. What it proved of honest plans is the
measure of the power that the exact rules lose.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_Z = NormalDist().inv_cdf(0.975)
_TURNS = 500


def proved(candidate: Floats, baseline: Floats, limit: float, relative: bool) -> bool:
    """Return whether the lower end of the 95 % interval is within the limit.

    Args:
        candidate: Records [samples, 1], of which the mean counts; higher is better.
    """
    one, two = candidate[:, 0], baseline[:, 0]
    base = float(two.mean())
    bound = base + limit if relative else limit
    if np.isin(one, (0.0, 1.0)).all() and np.isin(two, (0.0, 1.0)).all():
        return _wilson_low(one, two, relative, base) >= bound
    return _bootstrap_low(one, two, relative, base) >= bound


def _wilson_low(one: Floats, two: Floats, relative: bool, base: float) -> float:
    n = len(one)
    if not relative:
        return wilson(float(one.mean()), n)[0]
    lost = float(((two == 1) & (one == 0)).mean())
    won = float(((two == 0) & (one == 1)).mean())
    return base + won - lost - math.hypot(wilson(lost, n)[1] - lost, won - wilson(won, n)[0])


def _bootstrap_low(one: Floats, two: Floats, relative: bool, base: float) -> float:
    n = len(one)
    if n < 2:
        return -math.inf
    values = one - two + base if relative else one
    rows = np.random.default_rng(0).integers(0, n, (_TURNS, n))
    found = values[rows].mean(axis=1)
    middle = float(values.mean())
    wide = middle + (found - middle) * math.sqrt(n / (n - 1))
    return float(np.percentile(wide, 2.5))


def wilson(p: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (doi:10.1080/01621459.1927.10502953)."""
    centre = (p + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    half = _Z / (1 + _Z * _Z / n) * math.sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
