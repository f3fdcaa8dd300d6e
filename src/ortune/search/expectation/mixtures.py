"""Mixtures that surveys of regions lead to: which to try next, and what each should bring.

Regions go back to float in the order of what they bring (`ortune.search.mixed_precision.choice`).
How many is found by trials: between the mixture that keeps the budget with fewest in float and the
one that fails it with most, the fewest are tried whose loss, drawn straight between what these two
lost, keeps a little less than what is allowed. Each trial is of the mixture whole, so that a wrong
guess costs one step and never goes round in circles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ortune.backends.bucketed import Bucketed
from ortune.core.budget import Budget
from ortune.core.plan_label import label_plan
from ortune.core.roles import PREPARES, find_step_role
from ortune.core.step import Recipe
from ortune.core.trial import Plan, Status, Trial
from ortune.core.wording import join_names
from ortune.search.expectation.candidates import REGIONS, Candidate
from ortune.search.expectation.expectations import (
    Expectation,
    Expectations,
    budget_utilization,
    float_utilization,
    utilization_from_log,
)
from ortune.search.expectation.priors import Durations, run_s
from ortune.search.expectation.surrogate import Normal
from ortune.search.mixed_precision.choice import RegionCosts, can_mix, mix_recipe, parse_assignment
from ortune.search.mixed_precision.survey import Survey, SurveyRequest
from ortune.search.policy import View

MOST = 4
"""Mixtures of a survey that are tried: two or three find the limit, and each takes the time of
another plan."""
_AIM = 0.9  # share of the allowed loss that a mixture aims at: near the limit the answer is luck
_LEAST_GAIN = 0.99
"""A further mixture must be expected to take less than this share of the best before it: less is
not told apart by a trial."""
_REBUILT = 0.3
"""Of what the surveyed plan took to build: the kit's observations are known (a quarter, twice)."""
_FAR = 2.0  # times of what it may that a plan loses, from which most of its loss has to go back
_SLOWER = (0.25, 4.0)
"""How far time that was lost may be from what was expected, for the next: more is noise."""
_LOSS_SD = (0.5, 0.25)
"""Standard deviation of the logarithm of a loss: by the whole plan alone, and by a mixture."""
_TIME_SD = (0.06, 0.03)  # of the logarithm of a ratio, likewise
_RUNS = 0.97  # the chance that a mixture builds and runs: its plan did
_NAMED = 3  # regions whose names a reason gives


@dataclass(frozen=True)
class Mixture:
    """A survey's plan with some regions in float, and what is expected of it.

    Attributes:
        float_regions: Regions in float, in the graph's order.
        ratio: Of its latency to the original's.
        budget_utilization: Over what may be lost.
        first: No mixture of the survey was measured before it.
    """

    survey: Survey
    plan: Plan
    float_regions: tuple[str, ...]
    ratio: float
    budget_utilization: float
    first: bool

    @property
    def latency(self) -> Normal:
        """Logarithm of its ratio."""
        return Normal(math.log(self.ratio), _TIME_SD[not self.first])

    @property
    def keeps(self) -> float:
        """The chance that it keeps the budget."""
        if self.budget_utilization <= 0:
            return _RUNS
        return _RUNS * Normal(
            math.log(self.budget_utilization), _LOSS_SD[not self.first]
        ).probability_below(0.0)

    @property
    def why(self) -> str:
        """The short form of where it comes from."""
        names = join_names(self.float_regions, _NAMED)
        return (
            f"regions: {len(self.float_regions)} of {len(self.survey.regions)} in float "
            f"({names}): "
            f"expected {1 / self.ratio:.2g}x, "
            f"{100 * self.budget_utilization:.0f} % of the accuracy budget"
        )


@dataclass(frozen=True)
class MixtureSearch:
    """What a survey and the trials of its plan and mixtures tell.

    Attributes:
        mixtures: Trials of its mixtures where the plan runs, in order.
        floor: What the float model loses there over what may be lost: no region gives it back.
    """

    survey: Survey
    budget: Budget
    whole: Trial
    mixtures: Sequence[Trial]
    floor: float
    costs: RegionCosts

    @classmethod
    def from_survey(cls, survey: Survey, view: View) -> MixtureSearch | None:
        """Return it where the plan was timed and scored; None where nothing can follow."""
        whole = view.find_trial(survey.plan)
        if whole is None or view.budget is None or survey.error:
            return None
        if whole.ratio is None or not _is_scored(whole):
            return None
        trials = [
            t
            for t in view.trials
            if t.part == "search"
            and t.plan.backend == survey.plan.backend
            and parse_assignment(survey, t.plan.recipe)
        ]
        lowest = float_utilization(view, whole.plan.backend)
        return cls(survey, view.budget, whole, trials, lowest, RegionCosts.from_survey(survey))

    def budget_utilization(self, trial: Trial) -> float | None:
        """Return what a trial lost over what it may; None where it was not scored."""
        return None if trial.score is None else budget_utilization(trial.score, self.budget)

    def replay_expectation(self, trial: Trial) -> Mixture:
        """Return what was expected of one of its mixtures when it was proposed."""
        before = replace(self, mixtures=self.mixtures[: self.mixtures.index(trial)])
        return before._make_mixture(_in_float(self.survey, trial), trial.plan)

    def propose_mixture(self) -> Mixture | None:
        """Return the mixture to try now; None where there is none worth it."""
        fails, keeps = self._bounds
        if len(self.mixtures) >= MOST or self.floor >= _AIM or fails is None:
            return None
        in_float = set(self.costs.unmeasured)
        for names in [
            (),
            *self.costs.order_moves()[:-1],
        ]:  # behind the last nothing of the plan is left
            in_float |= set(names)
            summed = self.costs.total_loss(in_float)
            if in_float and summed < fails[0] and self._utilization_at(summed) <= _AIM:
                break
        else:
            return None
        if summed <= keeps[0]:
            return None
        mixture = self._make_mixture(frozenset(in_float))
        best = min(
            (
                t.ratio.value
                for t in self.mixtures
                if t.ratio and (_is_scored(t) and t.status is not Status.FAILS)
            ),
            default=math.inf,
        )
        return mixture if mixture.ratio < _LEAST_GAIN * best else None

    def _make_mixture(self, in_float: frozenset[str], plan: Plan | None = None) -> Mixture:
        if plan is None:
            plan = Plan(mix_recipe(self.survey, in_float), self.survey.plan.backend)
        float_regions = tuple(r.region for r in self.survey.regions if r.region in in_float)
        assert self.whole.ratio is not None
        whole_ratio, pace = self.whole.ratio.value, 1.0
        for trial in self.mixtures:
            back = self.costs.time_cost(_in_float(self.survey, trial))
            if trial.ratio is not None and back > 0:
                pace = min(_SLOWER[1], max(_SLOWER[0], (trial.ratio.value - whole_ratio) / back))
        return Mixture(
            self.survey,
            plan,
            float_regions,
            max(0.1 * whole_ratio, whole_ratio + pace * self.costs.time_cost(in_float)),
            self._utilization_at(self.costs.total_loss(in_float)) * (1 - self.floor) + self.floor,
            first=not self.mixtures,
        )

    def _utilization_at(self, summed: float) -> float:
        """Return what regions lose over what is left to them to lose."""
        fails, keeps = self._bounds
        if fails is None or fails[0] <= keeps[0]:
            return 0.0
        slope = (fails[1] - keeps[1]) / (fails[0] - keeps[0])
        return max(0.0, keeps[1] + (summed - keeps[0]) * slope)

    @cached_property
    def _bounds(self) -> tuple[tuple[float, float] | None, tuple[float, float]]:
        """Return sum of single losses and what was lost, of what fails the budget with the least
        and of what keeps it with the most below that; the float model keeps it.

        The plan is one of them. What it loses stands for the sum where that lacks regions, or
        where, before a mixture was measured, so much goes back that the others lose as they do
        alone; and a sum that is more than it counts as no more.
        """
        summed, alone = self.costs.total_loss(), self.survey.whole_cost
        if math.isfinite(alone) and alone > 0:
            far = (
                not self.mixtures
                and self._region_utilization(self.budget_utilization(self.whole) or 0.0) > _FAR
            )
            if far or self.costs.unmeasured:
                summed = alone
            elif not self.mixtures:
                summed = min(summed, alone)
        sums = [summed, *(self.costs.total_loss(_in_float(self.survey, t)) for t in self.mixtures)]
        points = (
            (summed, self._region_utilization(gone))
            for summed, trial in zip(sums, (self.whole, *self.mixtures), strict=True)
            if _is_scored(trial) and (gone := self.budget_utilization(trial)) is not None
        )
        valid = [point for point in points if math.isfinite(point[1]) and point[0] > 0]
        fails = min((point for point in valid if point[1] > 1), default=None)
        below = (
            point for point in valid if point[1] <= 1 and (fails is None or point[0] < fails[0])
        )
        return fails, max(below, default=(0.0, 0.0))

    def _region_utilization(self, gone: float) -> float:
        """Return what regions lose over what the float model there leaves to them."""
        return max(0.0, gone - self.floor) / max(1 - self.floor, 1e-9)


def propose_mixtures(view: View) -> Iterator[Mixture]:
    """Yield of every survey the mixture to try next."""
    for survey in view.surveys:
        mixing = MixtureSearch.from_survey(survey, view)
        mixture = None if mixing is None else mixing.propose_mixture()
        if mixture is not None and not view.has_trial(mixture.plan):
            yield mixture


def estimate_mixtures(view: View, expectations: Expectations) -> dict[Candidate, Expectation]:
    """Return the mixtures to try next, each with what the search expects of it."""
    proposals = list(propose_mixtures(view)) if view.by_region else []
    if not proposals:
        return {}
    estimates = expectations.estimate_plans([mixture.plan for mixture in proposals])
    takes = expectations.durations

    def seconds(mixture: Mixture) -> float:
        rebuilt = _REBUILT * takes.building_s(mixture.survey.plan.recipe)
        return rebuilt + takes.running_s(mixture.plan)

    return {
        Candidate(mixture.plan, REGIONS, mixture.why): replace(
            expectation, latency=mixture.latency, keeps=mixture.keeps, seconds=seconds(mixture)
        )
        for mixture, expectation in zip(proposals, estimates, strict=True)
    }


def _in_float(survey: Survey, trial: Trial) -> frozenset[str]:
    return parse_assignment(survey, trial.plan.recipe) or frozenset()


def _is_scored(trial: Trial) -> bool:
    return trial.score is not None and not math.isnan(trial.score.value)


SHARE = 0.25  # of the time that surveys may take, all together
FEWEST = 3  # regions below which there is nothing to choose among
_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU")
_SURVEY_RUNS = 6
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
class SurveyCandidate:
    """A survey that may be made now.

    Attributes:
        gain: What mixtures are expected to gain over the best, a share of the latency.
        seconds: What the survey and its first mixture will take.
    """

    request: SurveyRequest
    gain: float
    seconds: float


def rank_surveys(view: View) -> list[SurveyCandidate]:
    """Return the surveys that fit into the time, those first that gain most per second.

    A plan is worth one that fails the budget and is faster than what can win.
    """
    room = longest_s(view)
    if not view.by_region or room <= 0 or view.space.exact or _count_layers(view) < FEWEST:
        return []
    durations, alone = Durations(view), _alone_s(view)
    candidates = []
    surveyed = [survey.plan.recipe.steps for survey in view.surveys]
    able = [
        t
        for t in view.trials
        if t.part == "search"
        and (t.status is Status.FAILS and t.ratio is not None and not t.stopped)
        and (not isinstance(t.plan.backend, Bucketed) and can_mix(t.plan.recipe))
        and _is_scored(t)
    ]
    for trial in sorted(able, key=lambda t: t.ratio.value if t.ratio else math.inf):
        recipe = trial.plan.recipe  # each where it is fastest, and no mixture
        mixes = any(parse_assignment(survey, recipe) for survey in view.surveys)
        if recipe.steps in surveyed or trial.stage == REGIONS or mixes:
            continue
        surveyed.append(recipe.steps)
        needed = _survey_s(trial.plan.recipe, alone, durations)
        follows = durations.estimate_trial_s(trial.plan)
        if (
            needed <= room
            and needed + follows <= view.spare
            and (gain := _estimate_gain(trial, view))
        ):
            # A survey of all the time that there is leaves none for the mixtures that it is for.
            most = max(_LONGER * needed, _AT_LEAST * view.total)
            seconds = max(needed, min(most, view.spare - _MIXTURES * follows))
            assert trial.ratio is not None and trial.score is not None and view.budget is not None
            why = (
                f"{label_plan(trial.plan, view.trials[0].plan)} is {1 / trial.ratio.value:.2f}x "
                "as fast as the original and uses "
                f"{budget_utilization(trial.score, view.budget):.1f} times its accuracy budget"
            )
            request = SurveyRequest(trial.plan, why, seconds)
            candidates.append(SurveyCandidate(request, gain, needed + follows))
    return sorted(candidates, key=lambda candidate: -candidate.gain / candidate.seconds)


def longest_s(view: View) -> float:
    """Return the seconds that a survey may take: it ends before the finalists' time begins."""
    return min(SHARE * view.total - sum(s.seconds for s in view.surveys), view.spare)


def _estimate_gain(trial: Trial, view: View) -> float:
    """Return what mixtures of a plan may gain over what can win; 0 where nothing.

    The more a plan loses over what it may, the more of it has to go back to float.
    """
    assert trial.ratio is not None
    ratio = trial.ratio.value
    if not 0 < ratio < view.to_beat or view.budget is None or trial.score is None:
        return 0.0
    return _estimate_mixture_gain(
        Normal(math.log(ratio), 0.0),
        budget_utilization(trial.score, view.budget),
        trial.plan,
        view,
    )


def _estimate_mixture_gain(log_ratio: Normal, utilization: float, plan: Plan, view: View) -> float:
    """Return what mixtures of a plan that fails may gain, by the logarithm of its ratio.

    The more it loses over what it may, the more has to go back. What the hint loses by itself
    cannot.
    """
    least = float_utilization(view, plan.backend)
    if least >= _TOO_NEAR or not math.isfinite(utilization):
        return 0.0
    over = max(1.0, (utilization - least) / (1 - least))
    back = 1 - over**-_GIVEN_BACK
    exact = (
        t.ratio.value
        for t in view.trials
        if t.ratio is not None and not t.plan.recipe.lossy and t.plan.backend == plan.backend
    )
    plain = max(log_ratio.mean, math.log(min(exact, default=1.0)))
    slower = back * (plain - log_ratio.mean)
    sd = math.hypot(log_ratio.sd, min(_SPREAD, _MEASURED + slower / 2))
    return _SUCCEEDS * Normal(log_ratio.mean + slower, sd).improvement_over(math.log(view.to_beat))


class MixtureBases:
    """What plans are worth that may fail the budget, as what mixtures begin with."""

    def __init__(
        self, view: View, durations: Durations, survey_candidates: Sequence[SurveyCandidate]
    ) -> None:
        self._view, self._durations, self._room = view, durations, longest_s(view)
        able = view.by_region and not view.space.exact and view.goal.prefer == "speed"
        self._able = able and self._room > 0 and _count_layers(view) >= FEWEST
        self._alone = _alone_s(view) if self._able else 0.0
        self._surveyed_steps = {survey.plan.recipe.steps for survey in view.surveys}
        self._at_hand = max((survey.gain for survey in survey_candidates), default=0.0)

    def estimate_gain(self, plan: Plan, expectation: Expectation) -> tuple[float, float]:
        """Return what mixtures of a plan may gain, and the seconds of survey and first mixture.

        What plans that were tried may begin with needs no other plan.
        """
        budget = self._view.budget
        if not self._able or budget is None or plan.recipe.steps in self._surveyed_steps:
            return 0.0, 0.0
        if not (plan.recipe.lossy and can_mix(plan.recipe)) or isinstance(plan.backend, Bucketed):
            return 0.0, 0.0
        running = self._durations.running_s(plan)
        needed = _survey_s(plan.recipe, self._alone, self._durations)
        if needed > self._room or expectation.seconds + needed + running > self._view.spare:
            return 0.0, 0.0
        utilization = utilization_from_log(expectation.log_budget_utilization.mean, budget)
        gain = (
            _estimate_mixture_gain(expectation.latency, utilization, plan, self._view)
            - self._at_hand
        )
        return (1 - expectation.keeps) * max(0.0, gain), needed + running


def _survey_s(recipe: Recipe, alone: float, durations: Durations) -> float:
    """Return the seconds that a survey needs to be of use; what prepares for it is built."""
    steps = (step for step in recipe.steps if find_step_role(step) not in PREPARES)
    return durations.building_s(Recipe(recipe.name, tuple(steps))) + alone


def _alone_s(view: View) -> float:
    """Return what running every region by itself takes: once a view, as it goes through all the
    original's latencies."""
    return _SURVEY_RUNS * (_count_layers(view) + 1) * run_s(view.trials)


def _count_layers(view: View) -> int:
    return sum(view.facts.ops.get(op, 0) for op in _LAYERS)
