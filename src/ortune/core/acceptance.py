"""Which trials keep budget and bounds, what each may be called, and which finalist wins."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortune.core.hardware import memory
from ortune.core.trial import Interval, Score, Status, Trial, Verdict

if TYPE_CHECKING:
    from ortune.core.budget import Budget

_EQUAL = 1.01
"""Finalists within 1 % of the fastest may be as good; files within 1 % are as large."""
_LONE = 0.87
"""Nine of ten lone blocks are less than 13 % off (``benchmarks/results/abandoned.json``)."""
_FEWEST = 5
"""Answers lost or won, all one way, that a sign test at 5 % sees."""
_WHOLE, _NOTHING = 1e-6, 0.5
_EQUAL_MEMORY = 1.02
"""Peak memory of one plan differs by 0.2 % from process to process, with threads by more."""

Preference: TypeAlias = Literal["speed", "size", "memory"]


@dataclass(frozen=True)
class Goal:
    """By what a winner is chosen, and what it may be at most."""

    # ``speed`` wants the fastest; ``size`` the smallest files and ``memory`` the lowest peak, of
    # the plans that are not slower than the original beyond the noise.
    prefer: Preference = "speed"
    max_size: int | None = None  # bytes of the model file and its external data
    # Bytes; peak resident set of a process that has loaded it and run once.
    max_memory: int | None = None
    portable: bool = False  # nothing that is bound to this machine's CPU is tried

    def keeps_bounds(self, trial: Trial) -> bool:
        """Whether a plan keeps the bounds; one that was not measured keeps none."""
        return not self.describe_excess(trial)

    def describe_excess(self, trial: Trial) -> str:
        """Say which bounds a plan exceeds and by how much; empty where it keeps them."""
        bounds = (("size", self.max_size), ("memory", self.max_memory))
        return ", ".join(
            f"{memory.format_bytes(_count_bytes(trial, name))} is above --max-{name} "
            f"{memory.format_bytes(most)}"
            for name, most in bounds
            if most is not None and _count_bytes(trial, name) > most
        )

    def needs_less(self, first: Trial, second: Trial) -> bool:
        """Whether a plan needs less of what is preferred than another, more than they may differ.

        Of speed none does: that is what intervals say.
        """
        equal = _EQUAL_MEMORY if self.prefer == "memory" else _EQUAL
        return self._compute_cost(first) * equal < self._compute_cost(second)

    def is_ahead(self, first: Trial, second: Trial) -> bool:
        """Whether one plan looks better than another: it needs less, or as much and is faster."""
        if not self.keeps_bounds(second) or self.needs_less(first, second):
            return True
        return _read_ratio(first) < _read_ratio(second) and not self.needs_less(second, first)

    def group_trials(self, trials: Iterable[Trial]) -> Iterator[list[Trial]]:
        """Yield trials in groups that need as much of what is preferred, least first.

        The fastest come first within a group; with speed there is one.
        """
        remaining = sorted(trials, key=self._compute_cost)
        while remaining:
            near = [trial for trial in remaining if not self.needs_less(remaining[0], trial)]
            yield sorted(near, key=_read_ratio)
            remaining = remaining[len(near) :]

    def __str__(self) -> str:
        """Write what was asked as options; ``the fastest`` where nothing was."""
        bounds = (("size", self.max_size), ("memory", self.max_memory))
        set_bounds = [(name, most) for name, most in bounds if most is not None]
        limits = [f"--max-{name} {memory.format_bytes(most)}" for name, most in set_bounds]
        preference = [f"--prefer {self.prefer}"] * (self.prefer != "speed")
        return ", ".join([*preference, *limits, *["--portable"] * self.portable]) or "the fastest"

    def _compute_cost(self, trial: Trial) -> float:
        return 0.0 if self.prefer == "speed" else _count_bytes(trial, self.prefer)


FASTEST = Goal()


class Outcome(enum.StrEnum):
    """What a plan may be called by the 99 % interval that is shown with it."""

    FASTER = "faster within the budget"
    LEVEL = "no faster (within noise)"
    ROUGH = "measured once"
    DISTURBED = "without an interval, as its runs waited for a CPU"
    EMULATED = "timed on an emulated CPU, which claims nothing"
    SLOWER = "slower"
    UNSCORED = "not scored"
    FAILS = "outside the accuracy budget"
    FAILED = "failed"
    CUT_SHORT = "cut short from outside"
    TOO_LARGE = "too large"
    UNTRIED = "not tried"


LOST = (Outcome.SLOWER, Outcome.FAILS, Outcome.FAILED)


def is_accepted(trial: Trial, *, strict: bool) -> bool:
    """Say whether a trial ran and kept the budget; `strict` wants that proved.

    Of a finalist nothing is accepted that is undecided; what a search measured once may turn out
    to be anything that it does not fail.
    """
    if trial.status is not Status.OK or trial.score is None:
        return False
    if trial.score.verdict is Verdict.UNDECIDED and trial.part == "final":
        return False
    return trial.score.verdict is Verdict.PROVED or not strict


def is_faster(trial: Trial) -> bool:
    """Say whether a trial's interval lies below 1."""
    return trial.ratio is not None and trial.ratio.high < 1


def seems_faster(trial: Trial) -> bool:
    """Say whether a trial is faster, by its estimate where a lone block gave no interval."""
    lone = trial.shown_ratio is not None and not trial.shown_ratio.is_bounded
    return is_faster(trial) or (lone and _read_ratio(trial) < _LONE)


def classify_outcome(trial: Trial) -> Outcome:
    """Return what became of a trial: a search also sorts by less sure intervals, this does not."""
    if trial.status is Status.UNCHANGED:
        return Outcome.UNTRIED
    if trial.interruption is not None:
        return Outcome.CUT_SHORT
    if trial.status is Status.TOO_LARGE:
        return Outcome.TOO_LARGE
    if trial.status is Status.FAILED or trial.ratio is None:
        return Outcome.FAILED
    if trial.status is Status.FAILS:
        return Outcome.FAILS
    if trial.emulated:
        return Outcome.EMULATED
    if trial.ratio.low > 1 or (trial.stopped and trial.status is Status.SLOWER):
        return Outcome.SLOWER
    if trial.status is Status.SCREENED:
        return Outcome.UNSCORED
    if trial.is_disturbed:
        return Outcome.DISTURBED
    if is_faster(trial) and trial.status is Status.OK:
        return Outcome.FASTER
    # Timed too briefly to tell, a plan may be as fast as it seems.
    open_end = trial.ratio.value < _LONE and trial.ratio.high >= 1
    rough = trial.part != "final" and (open_end or not trial.ratio.is_bounded)
    return Outcome.ROUGH if rough else Outcome.LEVEL


def compare_latency(first: Trial, second: Trial) -> Interval:
    """Return the latency of one trial over another's, each measured against the original.

    Both have fresh pairs of their own, so the variances of their mean log-ratios add up, and the
    half-widths of their intervals with them.
    """
    if first.ratio is None or second.ratio is None:
        return Interval(math.nan, math.nan, math.nan)
    middle = math.log(first.ratio.value / second.ratio.value)
    half = math.hypot(_compute_half_width(first.ratio), _compute_half_width(second.ratio))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def is_eligible(
    trial: Trial,
    original: Trial | None,
    *,
    strict: bool,
    goal: Goal,
    quicker: Callable[[Trial], bool] = is_faster,
) -> bool:
    """Say whether a trial may be handed out in place of the original.

    It keeps the budget and the bounds and is not slower beyond the noise; of a finalist whose
    runs waited for a CPU, or ran on an emulated one, nobody knows. Where the original keeps the
    bounds too, it must be ahead of it: faster, or else less of what is preferred; faster at the
    price of more of it is not.

    Args:
        original: The untouched model; None is one that keeps all bounds.
        quicker: Says whether a trial is faster than the original.
    """
    if not is_accepted(trial, strict=strict) or trial.ratio is None or trial.ratio.low > 1:
        return False
    if not goal.keeps_bounds(trial) or (
        trial.part == "final" and (trial.is_disturbed or trial.emulated)
    ):
        return False
    if original is None:
        return quicker(trial)
    if not goal.keeps_bounds(original) or goal.needs_less(trial, original):
        return True
    return quicker(trial) and not goal.needs_less(original, trial)


def looks_eligible(trial: Trial, original: Trial, *, strict: bool, goal: Goal) -> bool:
    """Say whether a trial looks as if it may be handed out, by what a search measured once."""
    return is_eligible(trial, original, strict=strict, goal=goal, quicker=seems_faster)


def select_winner(
    trials: Iterable[Trial],
    original: Trial | None = None,
    *,
    strict: bool,
    goal: Goal = FASTEST,
) -> Trial | None:
    """Return the eligible trial that is wanted most, or None.

    With speed it is the fastest. With size or memory it is the fastest of those that need least.
    What is within 1 % of the fastest and not apart from it beyond the noise is as fast: of these
    an exact plan counts before a lossy one, then the smallest files, then the fewest settings,
    then the fewest steps.
    """
    fit = [t for t in trials if is_eligible(t, original, strict=strict, goal=goal)]
    least: Sequence[Trial] = next(goal.group_trials(fit), [])
    if not least:
        return None
    best = least[0]
    near = [
        t for t in least if (apart := compare_latency(t, best)).value <= _EQUAL and not apart.clear
    ]
    limit = _EQUAL * min(_count_bytes(t, "size") for t in near)

    def order(t: Trial) -> tuple[float, ...]:
        large = _count_bytes(t, "size") > limit
        return (t.plan.lossy, large, t.plan.settings, len(t.plan.recipe.steps), _read_ratio(t))

    return min(near, key=order)


def find_pareto_front(trials: Iterable[Trial], budget: Budget) -> tuple[Trial, ...]:
    """Return the trials that trade latency for score, fastest first.

    A slower one is among them for a score that is better by more than chance, a faster one for a
    latency that is: no step is noise. Of two that are level in both a finalist stands.
    """
    last = {trial.key: trial for trial in trials}.values()
    timed = (t for t in last if t.ratio and t.ratio.is_bounded and not t.error)
    points = [t for t in timed if math.isfinite(_compute_gain(t, budget))]
    frontier: list[Trial] = []
    for trial in sorted(points, key=lambda t: (_read_ratio(t), -_compute_gain(t, budget))):
        better = not frontier or _is_better(trial, frontier[-1], budget)
        level = bool(frontier) and compare_latency(trial, frontier[-1]).low <= 1
        sure = bool(frontier) and (trial.part == "final") > (frontier[-1].part == "final")
        if not better and not (level and sure and not _is_better(frontier[-1], trial, budget)):
            continue
        while frontier and compare_latency(trial, frontier[-1]).low <= 1:
            frontier.pop()
        frontier.append(trial)
    return tuple(frontier)


def compute_resolution(score: Score, budget: Budget) -> float:
    """Return by how much chance may move a score, in its own unit.

    Of answers that are right or wrong five: of fewer, all gone one way, a sign test has a chance
    above 5 % (2^-4). Else the distance to the score's bound where it has one. Where nothing says,
    what one sample that falls from the original's score to the limit moves a mean by.
    """
    n = max(1, score.samples)
    counts = (score.value * n, score.base * n)
    whole = all(abs(count - round(count)) < _WHOLE for count in counts)
    if whole and 0 <= round(counts[0]) < n:
        return _FEWEST / n
    off = abs(score.value - (score.low if budget.metric.higher_is_better else score.high))
    # Of answers none of which was held out the bound is the worst there is: it says nothing.
    share = 0 <= score.value <= 1 and 0 <= score.base <= 1
    if off < (_NOTHING if share else math.inf):
        return off
    return abs(score.base - budget.bound(score.base)) / n


def _is_better(first: Trial, second: Trial, budget: Budget) -> bool:
    chance = [compute_resolution(t.score, budget) for t in (first, second) if t.score]
    return _compute_gain(first, budget) - _compute_gain(second, budget) >= max(chance)


def _compute_gain(trial: Trial, budget: Budget) -> float:
    """Return what a plan's score is better by than the original's on the same samples."""
    value = trial.score.value - trial.score.base if trial.score else math.nan
    return value if budget.metric.higher_is_better else -value


def _count_bytes(trial: Trial, name: str) -> float:
    if name == "size":
        return math.inf if trial.size is None else trial.size
    return trial.measurement.peak_rss if trial.measurement else math.inf


def _read_ratio(trial: Trial) -> float:
    return trial.ratio.value if trial.ratio else math.inf


def _compute_half_width(ratio: Interval) -> float:
    return math.log(ratio.high / ratio.low) / 2 if ratio.low > 0 else math.inf
