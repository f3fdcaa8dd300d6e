"""Exact binomial tests of a share of samples, one-sided, without approximation."""

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST = 100_000  # samples beyond which nobody is told how many would prove something
_STEPS = 40  # halvings of an interval: beyond what a float can tell apart


def log_factorials(n: int) -> Floats:
    """Return log k! of k = 0..n, at least."""
    return _make_factorial_table(1 << max(10, n.bit_length()))


@cache
def _make_factorial_table(size: int) -> Floats:
    logs = np.concatenate([[0.0], np.log(np.arange(1, size))])
    return np.cumsum(logs)


def cdf(most: int, n: int, p: float) -> float:
    """Return the probability of at most `most` successes in `n` trials of probability `p`."""
    if most < 0:
        return 0.0
    if most >= n or p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    factorials, k = log_factorials(n), np.arange(most + 1)
    logs = factorials[n] - factorials[k] - factorials[n - k]
    return float(np.exp(logs + k * math.log(p) + (n - k) * math.log1p(-p)).sum())


@cache
def find_allowed_outside(n: int, share: float, error: float) -> int:
    """Return how many of `n` samples may be outside, so that `share` of all are proved inside.

    That is the most for which the chance of so few is at most `error` where the true share is
    `share`: the order statistic of a distribution-free bound of a quantile, and Clopper and
    Pearson's test (doi:10.1093/biomet/26.4.404). -1 where even none outside proves nothing.
    """
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        if cdf(middle, n, 1 - share) <= error:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=4096)
def compute_clopper_pearson(successes: int, n: int, error: float) -> float:
    """Return Clopper and Pearson's lower bound of a proportion, one-sided at `error`."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        # P(at least `successes` at p) = P(at most n - successes failures at 1 - p).
        if cdf(n - successes, n, 1 - middle) <= error:
            low = middle
        else:
            high = middle
    return low


def count_needed_samples(share: float, error: float) -> int:
    """Return the least samples that prove `share`, all of them being inside: 59 for 95 %."""
    return math.ceil(math.log(error) / math.log(share) - 1e-9)


@lru_cache(maxsize=4096)
def find_required_samples(inside: float, share: float, error: float) -> int | None:
    """Return the least samples that prove `share` if the share `inside` of them is inside.

    None where the estimate is NaN or no better than what is to be proved, or beyond `MOST`.
    """
    if share <= 0:
        return 1
    if not inside > share:
        return None

    def proves(n: int) -> bool:
        return cdf(round(n * (1 - inside)), n, 1 - share) <= error

    return find_first_proving(proves, count_needed_samples(share, error))


def find_first_proving(proves: Callable[[int], bool], start: int) -> int | None:
    """Return the least number from `start` to `MOST` that proves, by doubling and halving."""
    high = max(1, start)
    if proves(high):
        return high
    while not proves(high):
        if high >= MOST:
            return None
        low, high = high, min(2 * high, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        if proves(middle):
            high = middle
        else:
            low = middle
    return high
