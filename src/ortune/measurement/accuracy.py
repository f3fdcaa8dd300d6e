"""The paired accuracy test: is the candidate's score within the budget, and how surely?

Per-sample records of baseline and candidate are compared sample by sample (or group by group:
views of one photo count as one). Verdicts:

* **proved**: the bad end of the 95 % interval is within the budget;
* **likely**: the estimate is, the interval is not; `needed` samples would prove it;
* **fails**: the estimate is outside, or is NaN.

Intervals: 0/1 records use Wilson's score interval on the discordant samples, which does not
collapse when none is discordant (a bootstrap does); other means use a percentile bootstrap over
samples or groups; a worst-case metric is proved by 59 samples within the limit (Wilks 1941: 95 %
of inputs with 95 % confidence). A plan of exact steps whose outputs equal the baseline's to 80 dB
is proved by construction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.core.trial import Score, Verdict

CONFIDENCE = 0.95
EXACT_DB = 80.0
WILKS = 59

Floats = NDArray[np.float64]


def judge(
    budget: Budget,
    candidate: Floats,
    baseline: Floats,
    groups: Sequence[str] | None = None,
    *,
    exact: bool = False,
    snr_db: float | None = None,
) -> Score:
    """Judge records [samples, k] of a candidate against those of the baseline.

    Args:
        groups: Of each sample; None where every sample counts by itself.
        exact: The plan claims to compute the same.
        snr_db: Signal to noise of its outputs against the baseline's; None when unknown.
    """
    metric = budget.metric
    value, base = metric.aggregate(candidate), metric.aggregate(baseline)
    sign = 1.0 if metric.higher_is_better else -1.0
    low, high, needed, basis = _interval(budget, candidate, baseline, groups)
    bound = budget.bound(base)
    bad = low if sign > 0 else high
    if math.isnan(value) or not budget.admits(value, base):
        verdict, needed = Verdict.FAILS, None
    elif exact and snr_db is not None and snr_db >= EXACT_DB:
        verdict, needed = Verdict.PROVED, None
        basis = f"exact steps, outputs equal to {snr_db:.0f} dB"
    elif sign * (bad - bound) >= 0:
        verdict, needed = Verdict.PROVED, None
    else:
        verdict = Verdict.LIKELY
    return Score(str(metric), value, base, low, high, len(candidate), verdict, needed, basis)


def _interval(
    budget: Budget, candidate: Floats, baseline: Floats, groups: Sequence[str] | None
) -> tuple[float, float, int | None, str]:
    metric, n = budget.metric, len(candidate)
    value, base = metric.aggregate(candidate), metric.aggregate(baseline)
    if n == 0 or math.isnan(value):
        return math.nan, math.nan, None, "not a number"
    members = _members(groups, n)
    if metric.worst_case:
        if len(members) >= WILKS:
            return value, value, None, f"all {len(members)} independent samples within (Wilks)"
        worst = -math.inf if metric.higher_is_better else math.inf
        ends = (worst, value) if metric.higher_is_better else (value, worst)
        return *ends, WILKS * n // len(members), f"{len(members)} independent samples"
    if not metric.continuous and _binary(candidate) and _binary(baseline):
        low, high = _wilson(candidate[:, 0], baseline[:, 0], budget.relative, base, len(members))
        basis = f"Wilson on discordant samples, {len(members)} independent"
    else:
        low, high = _bootstrap(budget, candidate, baseline, members)
        basis = f"bootstrap over {len(members)}"
    return low, high, _needed(budget, value, base, low, high, len(members), n), basis


def _members(groups: Sequence[str] | None, n: int) -> list[NDArray[np.int64]]:
    if groups is None:
        return [np.array([i]) for i in range(n)]
    names = np.asarray(groups)
    return [np.flatnonzero(names == name) for name in dict.fromkeys(groups)]


def _binary(records: Floats) -> bool:
    return records.shape[1] == 1 and bool(np.isin(records, (0.0, 1.0)).all())


def _wilson(
    candidate: Floats, baseline: Floats, relative: bool, base: float, independent: int
) -> tuple[float, float]:
    """Interval of the mean; with a relative budget at the baseline's observed score."""
    n = len(candidate)
    if not relative:
        return wilson(float(candidate.mean()), independent)
    lost = float(((baseline == 1) & (candidate == 0)).sum()) / n
    won = float(((baseline == 0) & (candidate == 1)).sum()) / n
    lost_low, lost_high = wilson(lost, independent)
    won_low, won_high = wilson(won, independent)
    delta = won - lost
    down = math.hypot(lost_high - lost, won - won_low)
    up = math.hypot(lost - lost_low, won_high - won)
    return max(0.0, base + delta - down), min(1.0, base + delta + up)


def wilson(p: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (doi:10.1080/01621459.1927.10502953)."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _bootstrap(
    budget: Budget, candidate: Floats, baseline: Floats, members: list[NDArray[np.int64]]
) -> tuple[float, float]:
    """Percentile bootstrap over groups, widened for few of them by sqrt(n / (n - 1))."""
    metric, n = budget.metric, len(members)
    value, base = metric.aggregate(candidate), metric.aggregate(baseline)
    if n < 2:
        return -math.inf, math.inf
    rng = np.random.default_rng(0)
    found = np.empty(500)
    for turn in range(len(found)):
        rows = np.concatenate([members[i] for i in rng.integers(0, n, n)])
        found[turn] = metric.aggregate(candidate[rows])
        if budget.relative:
            found[turn] += base - metric.aggregate(baseline[rows])
    found = value + (found - value) * math.sqrt(n / (n - 1))
    tail = 50 * (1 - CONFIDENCE)
    return float(np.percentile(found, tail)), float(np.percentile(found, 100 - tail))


def _needed(
    budget: Budget, value: float, base: float, low: float, high: float, independent: int, n: int
) -> int | None:
    """Return the samples at which the interval's bad end reaches the limit: width ~ 1/sqrt(n)."""
    bound = budget.bound(base)
    bad = low if budget.metric.higher_is_better else high
    gap = abs(value - bound)
    if not math.isfinite(bad) or gap <= 0:
        return None
    if abs(bad - value) <= gap:
        return None
    if value in (0.0, 1.0) or (budget.relative and value == base):
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        independent_needed = z * z * (1 - gap) / gap
    else:
        independent_needed = independent * ((bad - value) / gap) ** 2
    return math.ceil(independent_needed * n / independent)
