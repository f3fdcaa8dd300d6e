"""When it is worth the time to measure a plan's regions one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ortune.backends.bucketed import Bucketed
from ortune.core.step import Recipe
from ortune.core.trial import Plan, Status, Trial
from ortune.quantization.roles import PREPARES, role
from ortune.regions.choice import mixable, parted
from ortune.regions.survey import SurveyRequest
from ortune.search.expectation.candidates import REGIONS
from ortune.search.expectation.durations import Durations, run_s
from ortune.search.expectation.expectations import Expected
from ortune.search.expectation.strain import floor, lost, lost_at
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View

SHARE = 0.25
"""Of the time that surveys may take, all together."""
FEWEST = 3
"""Regions below which there is nothing to choose among."""
_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU")
_RUNS = 6
"""Runs of every region that a survey needs to be of use, beside a build; with more time it runs
more samples."""
_LONGER, _AT_LEAST, _MIXTURES = 2.0, 0.1, 2
"""Times what it needs that a survey takes at most, or this share of the time budget if that is
more, and mixtures whose time it leaves."""
_SUCCEEDS = 0.6
"""The chance that some mixture of a plan that fails keeps the budget and runs as expected."""
_GIVEN_BACK = 0.35
"""How the share of the time that goes back to float grows with the logarithm of what is lost over
what may be. Mixtures that were solved for: EfficientNet-Lite0 0.12 and 0.36, MiniLM 0.5, GPT-2's
worst two products of 25 0.07."""
_TOO_NEAR = 0.8
"""Share of what may be lost from which what the hint loses alone leaves regions too little."""
_SPREAD, _MEASURED = 0.15, 0.02
"""Of the logarithm of a mixture's ratio before anything is known of its regions, at most, and
where nothing goes back: it is no faster than the plan that it is of."""


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

    A plan is worth one that fails the budget and is faster than what can win.
    """
    room = longest_s(view)
    if not view.by_region or room <= 0 or view.space.exact or _layers(view) < FEWEST:
        return []
    durations, alone = Durations(view), _alone_s(view)
    found = []
    for trial in _surveyable(view):
        needed = _survey_s(trial.plan.recipe, alone, durations)
        follows = durations.of(trial.plan)
        if needed <= room and needed + follows <= view.spare and (gain := _gain(trial, view)):
            # A survey of all the time that there is leaves none for the mixtures that it is for.
            most = max(_LONGER * needed, _AT_LEAST * view.total)
            seconds = max(needed, min(most, view.spare - _MIXTURES * follows))
            assert trial.ratio is not None and trial.score is not None and view.budget is not None
            why = (
                f"{trial.plan} takes {trial.ratio.value:.2f} of the original's time and loses "
                f"{lost(trial.score, view.budget):.1f} times what it may"
            )
            request = SurveyRequest(trial.plan, why, seconds)
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
    if trial.status is not Status.FAILS or trial.ratio is None or trial.stopped:
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
    if own >= best:
        return 0.0
    return _mixed(Normal(math.log(own), 0.0), lost(trial.score, view.budget), trial.plan, view)


def _mixed(own: Normal, gone: float, plan: Plan, view: View) -> float:
    """Return what mixtures of a plan that fails may gain.

    Args:
        own: Logarithm of the plan's ratio.
        gone: What it loses over what it may: so much the more has to go back. What the hint loses
            by itself cannot.
    """
    least = floor(view, plan.backend)
    if least >= _TOO_NEAR or not math.isfinite(gone):
        return 0.0
    over = max(1.0, (gone - least) / (1 - least))
    back = 1 - over**-_GIVEN_BACK
    plain = max(own.mean, math.log(view.exact_ratio(plan.backend)))
    slower = back * (plain - own.mean)
    sd = math.hypot(own.sd, min(_SPREAD, _MEASURED + slower / 2))
    return _SUCCEEDS * Normal(own.mean + slower, sd).gain(math.log(view.to_beat))


class Bases:
    """What plans are worth that may fail the budget, as what mixtures begin with.

    Args:
        view: Of the search.
        durations: By its records.
        known: What may be surveyed now, of it: `surveys`.
    """

    def __init__(self, view: View, durations: Durations, known: Sequence[WantedSurvey]) -> None:
        self._view, self._durations, self._room = view, durations, longest_s(view)
        able = view.by_region and not view.space.exact and view.wanted.prefer == "speed"
        self._able = able and self._room > 0 and _layers(view) >= FEWEST
        self._alone = _alone_s(view) if self._able else 0.0
        self._known = {one.plan.recipe.steps for one in view.surveys}
        self._at_hand = max((one.gain for one in known), default=0.0)

    def of(self, plan: Plan, known: Expected) -> tuple[float, float]:
        """Return what mixtures of a plan may gain, and the seconds of survey and first mixture.

        What plans that were tried may begin with needs no other plan.
        """
        budget = self._view.budget
        if not self._able or budget is None or not plan.recipe.lossy:
            return 0.0, 0.0
        if not mixable(plan.recipe):
            return 0.0, 0.0
        if plan.recipe.steps in self._known or isinstance(plan.backend, Bucketed):
            return 0.0, 0.0
        running = self._durations.running_s(plan)
        needed = _survey_s(plan.recipe, self._alone, self._durations)
        if needed > self._room or known.seconds + needed + running > self._view.spare:
            return 0.0, 0.0
        gone = lost_at(known.strain.mean, budget)
        gain = _mixed(known.latency, gone, plan, self._view) - self._at_hand
        return (1 - known.keeps) * max(0.0, gain), needed + running


def _survey_s(recipe: Recipe, alone: float, durations: Durations) -> float:
    """Return the seconds that a survey needs to be of use.

    Args:
        recipe: What prepares for its deciding step is built already.
        alone: Of running all regions by themselves: `_alone_s`.
    """
    steps = (step for step in recipe.steps if role(step) not in PREPARES)
    return durations.building_s(Recipe(recipe.name, tuple(steps))) + alone


def _alone_s(view: View) -> float:
    """Return what running every region by itself takes: once a view, as it goes through all the
    original's latencies."""
    return _RUNS * (_layers(view) + 1) * run_s(view.trials)


def _layers(view: View) -> int:
    return sum(view.facts.ops.get(op, 0) for op in _LAYERS)
