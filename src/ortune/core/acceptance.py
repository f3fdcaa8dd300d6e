"""Which trials keep the budget, what each may be called, and which finalist wins."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

from ortune.core.trial import Interval, Status, Trial, Verdict

_EQUAL = 1.01
"""Finalists within 1 % of the fastest may be as good."""


class Outcome(enum.StrEnum):
    """What a plan may be called by the 99 % interval that is shown with it."""

    FASTER = "faster within the budget"
    LEVEL = "no faster beyond the noise"
    SLOWER = "slower"
    UNSCORED = "not scored"
    FAILS = "outside the accuracy budget"
    FAILED = "failed"
    UNTRIED = "not tried"


LOST = (Outcome.SLOWER, Outcome.FAILS, Outcome.FAILED)


def accepted(trial: Trial, *, strict: bool) -> bool:
    """Say whether a trial ran and kept the budget; `strict` wants that proved."""
    if trial.status is not Status.OK or trial.score is None:
        return False
    return trial.score.verdict is Verdict.PROVED or not strict


def faster(trial: Trial) -> bool:
    """Say whether a trial's interval lies below 1."""
    return trial.ratio is not None and trial.ratio.high < 1


def outcome(trial: Trial) -> Outcome:
    """Return what became of a trial: a search also sorts by less sure intervals, this does not."""
    if trial.status is Status.UNCHANGED:
        return Outcome.UNTRIED
    if trial.status is Status.FAILED or trial.ratio is None:
        return Outcome.FAILED
    if trial.status is Status.FAILS:
        return Outcome.FAILS
    if trial.ratio.low > 1 or (trial.stopped and trial.status is Status.SLOWER):
        return Outcome.SLOWER
    if trial.status is Status.SCREENED:
        return Outcome.UNSCORED
    return Outcome.FASTER if faster(trial) and trial.status is Status.OK else Outcome.LEVEL


def between(one: Trial, two: Trial) -> Interval:
    """Return the latency of one trial over another's, each measured against the original.

    Both have fresh pairs of their own, so the variances of their mean log-ratios add up, and the
    half-widths of their intervals with them.
    """
    if one.ratio is None or two.ratio is None:
        return Interval(math.nan, math.nan, math.nan)
    middle = math.log(one.ratio.value / two.ratio.value)
    half = math.hypot(_half(one.ratio), _half(two.ratio))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def winner(trials: Iterable[Trial], *, strict: bool) -> Trial | None:
    """Return the fastest accepted trial whose interval excludes 1, or None.

    What is within 1 % of the fastest and not apart from it beyond the noise is as fast: of these
    an exact plan counts before a lossy one, then the fewest settings, then the fewest steps.
    """
    fit = [trial for trial in trials if accepted(trial, strict=strict) and faster(trial)]
    if not fit:
        return None
    best = min(fit, key=_ratio)
    near = [t for t in fit if (apart := between(t, best)).value <= _EQUAL and not apart.clear]
    return min(
        near,
        key=lambda t: (t.plan.lossy, t.plan.settings, len(t.plan.recipe.steps), _ratio(t)),
        default=best,
    )


def _ratio(trial: Trial) -> float:
    return trial.ratio.value if trial.ratio else math.inf


def _half(ratio: Interval) -> float:
    return math.log(ratio.high / ratio.low) / 2 if ratio.low > 0 else math.inf
