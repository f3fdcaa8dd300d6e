"""How near a score lies to its budget, on one scale for all metrics."""

from __future__ import annotations

import math

from ortune.core.budget import Budget
from ortune.core.trial import Score, Verdict

LEAST, MOST = -3.0, 4.0
"""Strains are cut off here: a plan that loses a twentieth of what it may is as good as exact."""
_TOUCHING = 0.05
_NEPER = 20 / math.log(10)
"""Decibels by which an amplitude grows e-fold."""


def strain(score: Score, budget: Budget) -> float:
    """Return the logarithm of what a plan loses over what the budget lets it lose.

    0 is the limit, below it the budget is kept. Decibels are logarithms already. The verdict
    decides the sign: it may rest on a share of the samples where the value is their mean.
    """
    if math.isnan(score.value):
        return MOST
    bound = budget.bound(score.base)
    better = 1 if budget.metric.higher_is_better else -1
    if budget.metric.decibels:
        found = better * (bound - score.value) / _NEPER
    else:
        lost, allowed = better * (score.base - score.value), better * (score.base - bound)
        if allowed > 0 and lost > 0:
            found = math.log(lost / allowed)
        else:
            found = MOST if lost > 0 else LEAST
    found = min(MOST, max(LEAST, found))
    fails = score.verdict is Verdict.FAILS
    return max(found, _TOUCHING) if fails else min(found, -_TOUCHING)


def together(one: float, two: float) -> float:
    """Return the strain of two independent losses that add up."""
    return max(one, two) + math.log1p(math.exp(-abs(one - two)))
