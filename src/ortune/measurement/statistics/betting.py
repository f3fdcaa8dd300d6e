"""Lower bounds of a mean of bounded values that hold at any number of samples."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Members = Sequence[NDArray[np.int64]]

BETS = np.array([1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.12, 0.07, 0.04, 0.02, 0.01])
"""Constant bets, as shares of the largest that cannot lose everything."""
WEIGHTS = np.array([0.4, *[0.06] * 10])
"""Of the bets; the largest wins soonest where nothing is lost, which is the common case."""
_HALVINGS = 24


def is_mean_above(values: Floats, sizes: Floats, bound: float, least: float, error: float) -> bool:
    """Say whether the mean is above `bound`, wrongly with a chance of at most `error`.

    The capital of a gambler who bets on every value in turn that the mean is above the bound:
    were it not, the capital would be a supermartingale and reach 1 / error with a chance of at
    most `error` (Ville). It is the mean of the capitals of constant bets, each the product of
    1 + bet (value - bound) (Waudby-Smith and Ramdas 2023, doi:10.1093/jrsssb/qkad009).

    Args:
        values: Sums of independent units, in an order that says nothing of them; shape [units].
        sizes: Samples of each unit.
        bound: That the mean of a sample is to be above.
        least: That a sample's value can be.
    """
    return compute_log_capital(values, sizes, bound, least) >= -math.log(error)


def compute_log_capital(values: Floats, sizes: Floats, bound: float, least: float) -> float:
    """Return the log of the largest capital on the way; see `is_mean_above`."""
    if not len(values):
        return 0.0
    if bound <= least:
        return math.inf if bound < least else 0.0
    gains = _compute_log_growth(values, sizes, bound, least).cumsum(axis=0)
    top = gains.max(axis=1)
    finite = np.where(np.isfinite(top), top, 0.0)
    capital = finite + np.log((np.exp(gains - finite[:, None]) * WEIGHTS).sum(axis=1) + 1e-300)
    return max(0.0, float(capital.max()))


def _compute_log_growth(values: Floats, sizes: Floats, bound: float, least: float) -> Floats:
    """Return by how much each bet grows on each unit, shape [units, bets].

    A unit counts as the sum over its samples of what they are above the bound, over the size of
    the largest unit, so that the mean over samples is what is tested.
    """
    ahead = (values - bound * sizes) / (sizes.max() * (bound - least))
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(1 + ahead[:, None] * BETS, 0.0)), np.float64)


def lower_bound(values: Floats, sizes: Floats, least: float, error: float) -> float:
    """Return the largest bound that is proved, at least `least`; see `is_mean_above`."""
    mean = float(values.sum() / sizes.sum()) if len(values) else least
    low, high = least, max(mean, least)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if is_mean_above(values, sizes, middle, least, error):
            low = middle
        else:
            high = middle
    return low


def estimate_required_units(
    values: Floats, sizes: Floats, bound: float, least: float, error: float
) -> int | None:
    """Return about how many such units would prove the bound; None where they never do."""
    if not len(values) or bound <= least:
        return None
    with np.errstate(invalid="ignore"):
        speed = _compute_log_growth(values, sizes, bound, least).mean(axis=0)
    return _count_units_to_goal(speed, error) if speed.max() > 0 else None


def compute_min_units(margin: float, reach: float, error: float) -> int | None:
    """Return the least units that prove a loss below `margin` where none loses of its `reach`."""
    if margin <= 0 or margin >= reach:
        return None if margin <= 0 else 1
    return _count_units_to_goal(np.log1p(BETS * margin / (reach - margin)), error)


def _count_units_to_goal(speed: Floats, error: float) -> int:
    """Return the units after which bets that grow so fast each, in logs, reach the goal."""
    good = speed > 0
    low, high = 0, math.ceil(float((-np.log(error * WEIGHTS[good]) / speed[good]).min()))
    while high - low > 1:
        middle = (low + high) // 2
        capital = float((WEIGHTS * np.exp(np.minimum(middle * speed, 600.0))).sum())
        low, high = (low, middle) if capital >= 1 / error else (middle, high)
    return high
