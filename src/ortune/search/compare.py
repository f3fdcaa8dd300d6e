"""How one trial stands to another: pure functions over records."""

from collections.abc import Sequence
from itertools import chain

from ortune.core.acceptance import Goal, is_eligible
from ortune.core.trial import Status, Trial, Verdict
from ortune.measurement.accuracy import is_within_reach
from ortune.search.recipe.descent import GAIN

NEAR = 1.05  # a plan within 5 % of the fastest is worth a finalist's time beside it
_OF_ONE_SIZE = 2
"""Finalists at most that need as much of what is preferred: accuracy may fail one of them."""


def select_leaders(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """Return verified plans that may win, those first that are wanted most.

    Of accuracy only what fails is left out: proof may come with all samples. The original is the
    first of the trials.
    """
    return list(chain(*_group_leaders(trials, goal)))


def select_finalists(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """Return the leaders that are worth re-measuring, best bet first.

    Of size or memory the best two of a kind. Of speed the second is of other steps than the first
    where one is near it: plans that differ in settings alone are often level, and the noise of a
    search may have put what is truly faster behind a row of them. The original comes first.
    """
    groups = _group_leaders(trials, goal)
    if goal.prefer != "speed":
        return [trial for group in groups for trial in group[:_OF_ONE_SIZE]]
    finalists: list[Trial] = []
    for first, *followers in groups:
        limit = NEAR * first.ratio.value if first.ratio else 0.0
        kind = first.plan.recipe.steps, type(first.plan.backend)
        near = (t for t in followers if t.ratio is not None and t.ratio.value < limit)
        unlike = (t for t in near if (t.plan.recipe.steps, type(t.plan.backend)) != kind)
        other = next(unlike, None)
        behind = [trial for trial in followers if trial is not other]
        finalists += [first, *behind] if other is None else [first, other, *behind]
    return finalists


def is_acceptable(trial: Trial, samples: int, plans: int) -> bool:
    """Whether a plan is accepted if it loses as little on all samples, so many, as so far.

    Then 91 % of simulated plans are, else 3 % (`benchmarks.accuracy.acceptance`). The accuracy of
    so many `plans` was read.
    """
    if not trial.plan.lossy:
        return True
    return trial.score is not None and is_within_reach(trial.score, samples, plans)


def _group_leaders(trials: Sequence[Trial], goal: Goal) -> list[list[Trial]]:
    """Return leaders in groups; those whose runs waited for a CPU come last in theirs."""
    original = trials[0]

    def seems_faster(trial: Trial) -> bool:
        return trial.ratio is not None and trial.ratio.value < 1

    searched = (t for t in trials if t.part == "search" and t.key != original.key)
    groups = goal.group_trials(
        t
        for t in searched
        if is_eligible(t, original, strict=False, goal=goal, quicker=seems_faster)
    )
    return [sorted(group, key=lambda trial: trial.waited) for group in groups]


def to_beat(trials: Sequence[Trial], goal: Goal) -> float:
    """Return the latency ratio above which a plan cannot win.

    With speed it is that of the fastest verified plan so far that keeps the bounds; where size or
    memory counts, and where the original exceeds a bound, any that is not slower may win. The
    original is the first of the trials.
    """
    if goal.prefer != "speed":
        return 1.0
    best = next(iter(select_leaders(trials, goal)), None)
    return min(1.0, best.ratio.value) if best and best.ratio else 1.0


def is_beaten(leader: Trial, trial: Trial, goal: Goal) -> bool:
    """Whether a plan cannot win any more beside one that was re-measured."""
    if goal.needs_less(leader, trial):
        return True
    return is_clearly_faster(leader, trial) and not goal.needs_less(trial, leader)


def is_estimated_faster(first: Trial, second: Trial) -> bool:
    """Whether one plan's estimate is below another's by more than 1 %."""
    return bool(first.ratio and second.ratio and first.ratio.value < GAIN * second.ratio.value)


def is_clearly_faster(first: Trial, second: Trial) -> bool:
    """Whether one plan is faster than another beyond both their intervals."""
    return bool(first.ratio and second.ratio and first.ratio.high < second.ratio.low)


def has_proved_speedup(trial: Trial, speedup: float) -> bool:
    """Whether a finalist is proved to be at least `speedup` times as fast."""
    proved = trial.score is not None and trial.score.verdict is Verdict.PROVED
    return bool(
        trial.status is Status.OK and proved and trial.ratio and trial.ratio.high <= 1 / speedup
    )
