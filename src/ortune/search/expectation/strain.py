"""How near a score lies to its budget, on one scale for all metrics."""

from __future__ import annotations

import math

from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.trial import Score, Verdict
from ortune.search.expectation.features import hint
from ortune.search.policy import View

LEAST, MOST = -3.0, 4.0
"""Strains are cut off here: a plan that loses a twentieth of what it may is as good as exact."""
_TOUCHING = 0.05
_CERTAIN = 0.05
"""Share beyond the limit, at least, where the verdict says which side of it a plan is on."""
_WHOLE = 1e-6
_SILENT = 3000.0
"""Decibels beyond which a loss is as good as infinite."""


def strain(score: Score, budget: Budget) -> float:
    """Return the logarithm of what a plan loses over what the budget lets it lose.

    0 is the limit, below it the budget is kept. Decibels are logarithms already. The verdict
    decides the sign: it may rest on a share of the samples where the value is their mean.
    """
    over = _lost(score, budget)
    if math.isnan(over):
        return MOST
    found = math.log(over) / _power(budget) if over > 0 else LEAST
    found = min(MOST, max(LEAST, found))
    fails = score.verdict is Verdict.FAILS
    return max(found, _TOUCHING) if fails else min(found, -_TOUCHING)


def _power(budget: Budget) -> int:
    return 2 if budget.metric.decibels else 1


def _lost(score: Score, budget: Budget) -> float:
    """Return what is lost over what may be lost, decibels as power; infinite where nothing may."""
    bound = budget.bound(score.base)
    better = 1 if budget.metric.higher_is_better else -1
    if budget.metric.decibels:
        decibels = better * (bound - score.value)
        return math.inf if decibels > _SILENT else float(10 ** (decibels / 10))
    gone, allowed = better * (score.base - score.value), better * (score.base - bound)
    return gone / allowed if allowed > 0 else math.inf if gone > 0 else 0.0


def spread(score: Score, budget: Budget) -> float:
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


def lost(score: Score, budget: Budget) -> float:
    """Return what a plan loses over what it may lose, in a measure that adds up over layers.

    1 is the limit. Decibels are turned into power, as errors that know nothing of each other add
    up in it. The verdict decides the side, as in `strain`. NaN and infinity: nothing is known, or
    nothing may be lost.
    """
    found = _lost(score, budget)
    if math.isnan(found):
        return math.nan
    found = max(0.0, found)
    fails = score.verdict is Verdict.FAILS
    return max(found, 1 + _CERTAIN) if fails else min(found, 1 - _CERTAIN)


def lost_at(strain: float, budget: Budget) -> float:
    """Return what is lost at a strain, in the measure of `lost`."""
    return math.exp(_power(budget) * strain)


def floor(view: View, backend: Backend) -> float:
    """Return what the float model loses under a backend's hint, over what may be lost.

    No region of a plan there gives it back. 0 where nothing is lost, or nothing was scored.
    """
    if view.budget is None or not backend.lossy:
        return 0.0
    there = hint(backend)
    alike = (t for t in view.trials if not t.plan.recipe.lossy and hint(t.plan.backend) == there)
    known = [lost(t.score, view.budget) for t in alike if t.score is not None]
    return min((one for one in known if not math.isnan(one)), default=0.0)


def together(one: float, two: float) -> float:
    """Return the strain of two independent losses that add up."""
    return max(one, two) + math.log1p(math.exp(-abs(one - two)))
