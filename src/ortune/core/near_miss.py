"""The fastest plan that misses the accuracy budget by little, and the budget that admits it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ortune.core.budget import Budget
from ortune.core.plan_label import label_plan
from ortune.core.trial import Plan, Score, Status, Trial
from ortune.core.wording import describe_speedup, format_score_value, shorten_groups

_LOSS, _DECIBELS = 3.0, 5.0
"""A plan that loses so many times what the budget allows, or so many decibels more, is near it."""
_WORTH = 0.95
"""A near miss is told where it takes less than this share of the winner's time."""


@dataclass(frozen=True)
class NearMiss:
    """A plan outside the budget that is faster than the winner."""

    trial: Trial
    looser: Budget  # the budget with one more step, which would admit it
    text: str  # how fast it is, what it scores and what was asked


def find_near_miss(
    trials: Iterable[Trial], best: Trial, budget: Budget, baseline: Plan
) -> NearMiss | None:
    """Return the fastest plan a little outside the budget, if it is faster than the winner.

    Of a budget with steps that is the loosest, by which the trials and the winner are judged.
    """
    loosest = budget.steps[-1]
    limit = _WORTH * min(1.0, best.ratio.value if best.ratio else 1.0)
    near = [
        (trial.shown_ratio.value, trial, trial.score)
        for trial in trials
        if trial.status is Status.FAILS
        and trial.shown_ratio is not None
        and trial.shown_ratio.value < limit
        and trial.score is not None
        and _is_near(trial.score, loosest)
    ]
    if not near:
        return None
    _, trial, score = min(near, key=lambda entry: entry[0])
    bound = format_score_value(loosest.bound(score.base))
    text = (
        f"{label_plan(trial.plan, baseline)} is {describe_speedup(trial.shown_ratio)}, with "
        f"{shorten_groups(score.metric)} {score.value:.4g} where the budget asks for {bound}"
    )
    return NearMiss(trial, budget.loosen_to(score.value, score.base), text)


def _is_near(score: Score, budget: Budget) -> bool:
    """Whether a score misses the budget, and by little."""
    if not math.isfinite(score.value) or budget.admits(score.value, score.base):
        return False
    bound = budget.bound(score.base)
    missed, allowed = abs(bound - score.value), abs(score.base - bound)
    return missed <= (_DECIBELS if budget.metric.decibels else (_LOSS - 1) * allowed)
