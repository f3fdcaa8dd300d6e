"""When it is worth the time to measure a plan's regions one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ortune.backends.bucketed import Bucketed
from ortune.core.trial import Status, Trial
from ortune.regions.mixing import mixable, parted
from ortune.regions.survey import SurveyRequest
from ortune.search.expectation.candidates import REGIONS
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.strain import lost
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View

SHARE = 0.25
"""Of the time that surveys may take, all together."""
FEWEST = 3
"""Regions below which there is nothing to choose among."""
_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU")
_BUILDS, _TIMED, _RUNS = 3, 2, 6
"""What a survey needs to be of use: models built, patterns timed, runs of every region. With more
time it times more of them, on more samples."""
_SUCCEEDS = 0.6
"""The chance that some mixture of a plan that fails keeps the budget and runs as expected."""
_NEAR = 1.1
"""A plan that keeps the budget is surveyed within this factor of the best."""
_SPREAD = 0.15
"""Of the logarithm of a mixture's ratio before anything is known of its regions."""


@dataclass(frozen=True)
class WantedSurvey:
    """A survey that may be made now.

    Attributes:
        gain: What mixtures are expected to gain over the best, a share of the latency.
        seconds: What the survey and its first mixture will take.
    """

    request: SurveyRequest
    gain: float
    seconds: float


def surveys(view: View) -> list[WantedSurvey]:
    """Return the surveys that fit into the time, those first that gain most per second.

    A plan is worth one that fails the budget and is faster than what can win, or that keeps it
    near the best: regions that cost time in it may be found.
    """
    room = longest_s(view)
    if not view.by_region or room <= 0 or view.space.exact or _layers(view) < FEWEST:
        return []
    expected = Expectations(view)
    found = []
    for trial in _surveyable(view):
        needed, follows = _needed_s(trial, view, expected), expected.seconds(trial.plan)
        if needed <= room and needed + follows <= view.spare and (gain := _gain(trial, view)):
            # What keeps the budget has little to gain: such a survey stays as short as promised.
            longest = math.inf if trial.status is Status.FAILS else needed
            request = SurveyRequest(trial.plan, _why(trial, view), longest)
            found.append(WantedSurvey(request, gain, needed + follows))
    return sorted(found, key=lambda one: -one.gain / one.seconds)


def longest_s(view: View) -> float:
    """Return the seconds that a survey may take: it ends before the finalists' time begins."""
    return min(SHARE * view.total - sum(s.seconds for s in view.surveys), view.spare)


def _surveyable(view: View) -> Iterator[Trial]:
    """Yield the plans whose regions are not known, each recipe where it is fastest."""
    known = [one.plan.recipe.steps for one in view.surveys]
    trials = [t for t in view.trials if t.part == "search" and _measured(t)]
    for trial in sorted(trials, key=lambda t: t.ratio.value if t.ratio else math.inf):
        steps = trial.plan.recipe.steps
        if steps not in known and not _is_mixture(view, trial):
            known.append(steps)
            yield trial


def _measured(trial: Trial) -> bool:
    """Whether mixtures of a plan could be told from it."""
    if trial.status not in (Status.OK, Status.FAILS) or trial.ratio is None or trial.stopped:
        return False
    if isinstance(trial.plan.backend, Bucketed) or not mixable(trial.plan.recipe):
        return False
    return trial.score is not None and not math.isnan(trial.score.value)


def _is_mixture(view: View, trial: Trial) -> bool:
    if trial.stage == REGIONS:
        return True
    return any(parted(one, trial.plan.recipe) for one in view.surveys)


def _gain(trial: Trial, view: View) -> float:
    """Return what mixtures of a plan may gain over what can win; 0 where nothing.

    The more a plan loses over what it may, the more of it has to go back to float.
    """
    assert trial.ratio is not None
    best, own = view.to_beat, trial.ratio.value
    if best <= 0 or own <= 0 or view.budget is None or trial.score is None:
        return 0.0
    if trial.status is not Status.FAILS:
        if own > _NEAR * best:
            return 0.0
        return Normal(math.log(own) - 0.01, 0.03).gain(math.log(best))
    if own >= best:
        return 0.0
    over = max(1.0, lost(trial.score, view.budget))
    back = 1 - over**-0.35 if math.isfinite(over) else 1.0
    mean = (1 - back) * math.log(own) + back * math.log(
        max(own, view.exact_ratio(trial.plan.backend))
    )
    return _SUCCEEDS * Normal(mean, _SPREAD).gain(math.log(best))


def _needed_s(trial: Trial, view: View, expected: Expectations) -> float:
    """Return the seconds that a survey of a plan needs to be of use."""
    built = max(trial.building, expected.building_s(trial.plan.recipe))
    running = _RUNS * (_layers(view) + 1) * _run_s(view.trials)
    return (_BUILDS + _TIMED) * built + _TIMED * _pair_s(trial) + running


def _pair_s(trial: Trial) -> float:
    return max(0.2, trial.seconds - trial.building) / 2


def _run_s(trials: Sequence[Trial]) -> float:
    """Return the seconds of a run of the original."""
    first = trials[0].measurement
    return median(first.latency_ns) / 1e9 if first is not None and first.latency_ns else 0.0


def _layers(view: View) -> int:
    return sum(view.facts.ops.get(op, 0) for op in _LAYERS)


def _why(trial: Trial, view: View) -> str:
    assert trial.ratio is not None
    text = f"{trial.plan} takes {trial.ratio.value:.2f} of the original's time"
    if trial.status is not Status.FAILS:
        return f"{text} and keeps the budget: regions of it may cost time"
    assert trial.score is not None
    assert view.budget is not None
    return f"{text} and loses {lost(trial.score, view.budget):.1f} times what it may"
