"""How near a score lies to its budget, on one scale for all metrics."""

from __future__ import annotations

import math

from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.trial import Score, Verdict
from ortune.search.expectation.features import backend_precision
from ortune.search.policy import View

LEAST, MOST = -3.0, 4.0
"""Strains are cut off here: a plan that loses a twentieth of what it may is as good as exact."""
_TOUCHING = 0.05
_CERTAIN = 0.05
"""Share beyond the limit, at least, where the verdict says which side of it a plan is on."""
_WHOLE = 1e-6
_SILENT = 3000.0
"""Decibels beyond which a loss is as good as infinite."""


def log_budget_utilization(score: Score, budget: Budget) -> float:
    """Return the logarithm of what a plan loses over what the budget lets it lose.

    0 is the limit, below it the budget is kept. Decibels are logarithms already. The verdict
    decides the sign: it may rest on a share of the samples where the value is their mean.
    """
    over = _raw_utilization(score, budget)
    if math.isnan(over):
        return MOST
    power = 2 if budget.metric.decibels else 1
    value = math.log(over) / power if over > 0 else LEAST
    value = min(MOST, max(LEAST, value))
    fails = score.verdict is Verdict.FAILS
    return max(value, _TOUCHING) if fails else min(value, -_TOUCHING)


def _raw_utilization(score: Score, budget: Budget) -> float:
    """Return what is lost over what may be lost, decibels as power; infinite where nothing may."""
    bound = budget.bound(score.base)
    better = 1 if budget.metric.higher_is_better else -1
    if budget.metric.decibels:
        decibels = better * (bound - score.value)
        return math.inf if decibels > _SILENT else float(10 ** (decibels / 10))
    gone, allowed = better * (score.base - score.value), better * (score.base - bound)
    return gone / allowed if allowed > 0 else math.inf if gone > 0 else 0.0


def log_utilization_sd(score: Score, budget: Budget) -> float:
    """Return the standard deviation that chance gives the strain of counted answers; 0 of others.

    As many answers as were lost might as well have been their root more or fewer.
    """
    n = max(1, score.samples)
    counts = (score.value * n, score.base * n)
    if any(abs(count - round(count)) > _WHOLE or not 0 <= round(count) <= n for count in counts):
        return 0.0
    gone, allowed = abs(counts[0] - counts[1]), abs(score.base - budget.bound(score.base)) * n
    if max(gone, allowed) <= 0:
        return 0.0
    return math.log1p(math.sqrt(max(1.0, gone)) / max(gone, allowed))


def budget_utilization(score: Score, budget: Budget) -> float:
    """Return what a plan loses over what it may lose, in a measure that adds up over layers.

    1 is the limit. Decibels are turned into power, as errors that know nothing of each other add
    up in it. The verdict decides the side, as in `log_budget_utilization`. NaN and infinity:
    nothing is known, or nothing may be lost.
    """
    utilization = _raw_utilization(score, budget)
    if math.isnan(utilization):
        return math.nan
    utilization = max(0.0, utilization)
    fails = score.verdict is Verdict.FAILS
    return max(utilization, 1 + _CERTAIN) if fails else min(utilization, 1 - _CERTAIN)


def utilization_from_log(log_utilization: float, budget: Budget) -> float:
    """Return what is lost at a strain, in the measure of `budget_utilization`."""
    return math.exp((2 if budget.metric.decibels else 1) * log_utilization)


def float_utilization(view: View, backend: Backend) -> float:
    """Return what the float model loses under a backend's hint, over what may be lost.

    No region of a plan there gives it back. 0 where nothing is lost, or nothing was scored.
    """
    if view.budget is None or not backend.lossy:
        return 0.0
    there = backend_precision(backend)
    alike = (
        t
        for t in view.trials
        if not t.plan.recipe.lossy and backend_precision(t.plan.backend) == there
    )
    utilizations = [budget_utilization(t.score, view.budget) for t in alike if t.score is not None]
    return min((value for value in utilizations if not math.isnan(value)), default=0.0)


def combine_losses(first: float, second: float) -> float:
    """Return the strain of two independent losses that add up."""
    return max(first, second) + math.log1p(math.exp(-abs(first - second)))
