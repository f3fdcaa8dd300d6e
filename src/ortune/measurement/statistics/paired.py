"""Exact unconditional test of how many answers were lost, samples being paired."""

import math
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ortune.measurement.statistics import binomial

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

GAMMA = 1e-3  # share of the error that is spent on where the nuisance parameter may lie
_STEP = 0.1  # of the nuisance parameter on the scale of sqrt(n q), whose standard deviation is 1/2
_TAIL, _MORE = 6.0, 10
"""Counts further out, in standard deviations and then some, have a chance below 1e-8."""
_SAFE = 300.0  # exponents whose products are far from what a float can hold
_ROUNDS = 3  # of the search for a bound, which is only shown
_cached_lower_bound = lru_cache(maxsize=256)(binomial.compute_clopper_pearson)
"""Asked anew for each limit that is tried on the same outcome."""


@lru_cache(maxsize=4096)
def p_value(n: int, lost: int, won: int, delta: float, error: float) -> float:
    """Return the p-value of "the share lost less the share won is `delta` or more".

    Outcomes are ordered by z = (won - lost + n delta) / sqrt(won + lost + n delta), which rises
    with every answer won and falls with every one lost (by won - lost where `delta` is not
    positive). So the chance of an outcome as good as the one seen is largest where the two shares
    differ by just `delta`; the p-value is its maximum over the share that remains unknown there,
    within the exact confidence set of Berger and Boos (doi:10.1080/01621459.1994.10476836) at
    `GAMMA` of the error, which is added.

    Args:
        error: At which the p-value will be judged.
    """
    if n == 0 or abs(delta) >= 1:
        return float(n == 0 or delta < 0)
    seen, gamma = won if delta >= 0 else lost, GAMMA * error
    high = min(1 - _cached_lower_bound(n - seen, n, gamma / 2), (1 - abs(delta)) / 2)
    low = min(_cached_lower_bound(seen, n, gamma / 2), high)
    ends = math.sqrt(n * low), math.sqrt(n * high)
    grid = np.linspace(*ends, 2 + math.ceil((ends[1] - ends[0]) / _STEP))
    chances = _compute_chances(n, lost, won, delta, grid)
    best = int(chances.argmax())
    around = np.linspace(grid[max(0, best - 1)], grid[min(best + 1, len(grid) - 1)], 9)
    largest = max(chances.max(), _compute_chances(n, lost, won, delta, around).max())
    return min(1.0, float(largest) + gamma)


def _compute_chances(n: int, lost: int, won: int, delta: float, roots: Floats) -> Floats:
    """Return for each sqrt(n q) the chance of an outcome as good as the one seen.

    The trinomial is computed once, at the middle of the grid; elsewhere it differs by factors of
    the two counts, so that the sums are matrix products.
    """
    grid = np.clip(roots * roots / n, 1e-6 / n, None)
    loss, win = grid + max(0.0, delta), grid + max(0.0, -delta)
    none = np.clip(1 - loss - win, 1e-12, None)
    middle = len(grid) // 2
    losses, wins = _list_likely_counts(n, loss), _list_likely_counts(n, win)
    factorials = binomial.log_factorials(n)
    ties = n - losses[0] - wins[0] - np.arange(len(losses) + len(wins) - 1)
    tie_logs = ties * math.log(none[middle]) - factorials[np.maximum(ties, 0)]
    logs = _view_by_sum(np.where(ties < 0, -np.inf, tie_logs), wins) + (
        factorials[n] - factorials[wins] + wins * math.log(win[middle])
    )
    logs += (losses * math.log(loss[middle]) - factorials[losses])[:, None]
    good = _find_as_good(n, lost, won, delta, losses, wins)
    odds = [np.log(rates / none) for rates in (loss, win)]
    by = [term - term[middle] for term in odds]
    near = [int(rates[middle] * n) for rates in (loss, win)]
    scale = n * np.log(none / none[middle]) + by[0] * near[0] + by[1] * near[1]
    powers = by[0][:, None] * (losses - near[0]), by[1][:, None] * (wins - near[1])
    if max(float(abs(power).max()) for power in powers) > _SAFE:
        grid_terms = zip(*powers, scale, strict=True)
        return np.array(
            [
                np.exp(logs + term[:, None] + win_term + more)[good].sum()
                for term, win_term, more in grid_terms
            ]
        )
    term, win_term = np.exp(powers[0]), np.exp(powers[1])
    cells = np.exp(logs) * good
    return np.asarray(((term @ cells) * win_term).sum(axis=1) * np.exp(scale), np.float64)


def _find_as_good(
    n: int, lost: int, won: int, delta: float, losses: Counts, wins: Counts
) -> NDArray[np.bool_]:
    """Return which outcomes [losses, wins] are as good as the one seen, in the test's order."""
    ahead, seen = wins - losses[:, None] + n * delta, won - lost + n * delta
    if delta <= 0:
        return np.asarray(ahead >= seen - 1e-12)
    changed = losses[0] + wins[0] + np.arange(len(losses) + len(wins) - 1) + n * delta
    least = (seen / math.sqrt(won + lost + n * delta) - 1e-12) * np.sqrt(changed)
    return np.asarray(ahead >= _view_by_sum(least, wins))


def _view_by_sum(values: Floats, wins: Counts) -> Floats:
    """Return a view [losses, wins] of what depends on the sum of the two counts alone."""
    return np.lib.stride_tricks.sliding_window_view(values, len(wins))


def _list_likely_counts(n: int, rates: Floats) -> Counts:
    """Return the counts that have a chance at any of the rates."""
    low, high = n * float(rates.min()), n * float(rates.max())
    first = max(0, math.floor(low - _TAIL * math.sqrt(low)))
    return np.arange(first, min(n, math.ceil(high + _TAIL * math.sqrt(high)) + _MORE) + 1)


@lru_cache(maxsize=4096)
def estimate_loss_bound(n: int, lost: int, won: int, error: float) -> float:
    """Return about what the share lost less the share won is at most: the test, inverted.

    The normal approximation, improved by a few steps of the secant method: good enough to be
    shown; what is decided is decided by `p_value`.
    """
    if n == 0:
        return 1.0
    ahead, changed, z = won - lost, won + lost, NormalDist().inv_cdf(1 - error)

    def missing(delta: float) -> float:
        p = p_value(n, lost, won, delta, error)
        return z + NormalDist().inv_cdf(min(max(p, 1e-15), 1 - 1e-15))

    half = z * z / 2 - ahead
    guess = (half + math.sqrt(max(0.0, half * half - ahead * ahead + z * z * changed))) / n
    low, high, before = -ahead / n, 1.0, (0.0, 0.0)
    for turn in range(_ROUNDS):
        if not low < guess < high:
            guess = (low + high) / 2
        here = guess, missing(guess)
        low, high = (guess, high) if here[1] > 0 else (low, guess)
        slope = -n / math.sqrt(changed + n * abs(guess) + 1)
        if turn and here[1] != before[1]:
            slope = min((here[1] - before[1]) / (here[0] - before[0]), slope / 10)
        guess, before = here[0] - here[1] / slope, here
    return min(max(guess, low), high)


@cache
def compute_min_samples(delta: float, error: float) -> int | None:
    """Return the least samples that prove a loss below `delta` when no answer changes."""
    if not 0 < delta < 1:
        return None
    n = math.ceil(math.log(error) / math.log1p(-delta) - 1e-9)
    while p_value(n, 0, 0, delta, error) > error:
        n += 1
        if n > binomial.MOST:
            return None
    return n


def estimate_required_samples(lost: float, won: float, delta: float, error: float) -> int | None:
    """Return about how many samples prove it, with these shares of them lost and won."""
    if not lost and not won:
        return compute_min_samples(delta, error)
    margin = delta + won - lost
    if margin <= 0:
        return None
    return math.ceil(-math.log(error) * (lost + won + max(delta, 0.0)) / margin**2)
