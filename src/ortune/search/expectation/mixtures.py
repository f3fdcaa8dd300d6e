"""Mixtures that surveys of regions lead to: which to try next, and what each should bring.

Regions go back to float in the order of what they bring (`ortune.regions.choice`). How many is
found by trials: between the mixture that keeps the budget with fewest in float and the one that
fails it with most, the fewest are tried whose loss, drawn straight between what these two lost,
keeps a little less than what is allowed. Each trial is of the mixture whole, so that a wrong guess
costs one step and never goes round in circles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ortune.core.budget import Budget
from ortune.core.trial import Plan, Status, Trial
from ortune.regions.choice import RegionCosts, mixed, parted
from ortune.regions.survey import Survey
from ortune.search.expectation.candidates import REGIONS, Candidate
from ortune.search.expectation.expectations import Expectations, Expected
from ortune.search.expectation.strain import floor, lost
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View

MOST = 4
"""Mixtures of a survey that are tried: two or three find the limit, and each takes the time of
another plan."""
_AIM = 0.9
"""Share of the allowed loss that a mixture aims at: near the limit the answer is luck."""
_LEAST_GAIN = 0.99
"""A further mixture must be expected to take less than this share of the best before it: less is
not told apart by a trial."""
_REBUILT = 0.3
"""Of what the surveyed plan took to build: the kit's observations are known (a quarter, twice)."""
_FAR = 2.0
"""Times of what it may that a plan loses, from which most of its loss has to go back."""
_SLOWER = (0.25, 4.0)
"""How far time that was lost may be from what was expected, for the next: more is noise."""
_LOSS_SD = (0.5, 0.25)
"""Standard deviation of the logarithm of a loss: by the whole plan alone, and by a mixture."""
_TIME_SD = (0.06, 0.03)
"""Of the logarithm of a ratio, likewise."""
_RUNS = 0.97
"""The chance that a mixture builds and runs: its plan did."""
_NAMED = 3
"""Regions whose names a reason gives."""


@dataclass(frozen=True)
class Mixture:
    """A survey's plan with some regions in float, and what is expected of it.

    Attributes:
        left: Regions in float, in the graph's order.
        ratio: Of its latency to the original's.
        lost: Over what may be lost.
        first: No mixture of the survey was measured before it.
    """

    survey: Survey
    plan: Plan
    left: tuple[str, ...]
    ratio: float
    lost: float
    first: bool

    @property
    def latency(self) -> Normal:
        """Logarithm of its ratio."""
        return Normal(math.log(self.ratio), _TIME_SD[not self.first])

    @property
    def keeps(self) -> float:
        """The chance that it keeps the budget."""
        if self.lost <= 0:
            return _RUNS
        return _RUNS * Normal(math.log(self.lost), _LOSS_SD[not self.first]).below(0.0)

    @property
    def why(self) -> str:
        """The short form of where it comes from."""
        names = ", ".join(self.left[:_NAMED]) + ", ..." * (len(self.left) > _NAMED)
        return (
            f"regions: {len(self.left)} of {len(self.survey.regions)} in float ({names}): "
            f"expected ratio {self.ratio:.2f}, {self.lost:.2f} of the allowed loss"
        )


@dataclass(frozen=True)
class Mixing:
    """What a survey and the trials of its plan and mixtures tell.

    Attributes:
        whole: The trial of the surveyed plan.
        mixtures: Trials of its mixtures where the plan runs, in order.
        floor: What the float model loses there over what may be lost: no region gives it back.
        costs: Of the survey's regions.
    """

    survey: Survey
    budget: Budget
    whole: Trial
    mixtures: Sequence[Trial]
    floor: float
    costs: RegionCosts

    @classmethod
    def of(cls, survey: Survey, view: View) -> Mixing | None:
        """Return it where the plan was timed and scored; None where nothing can follow."""
        whole = view.find(survey.plan)
        if whole is None or view.budget is None or survey.error:
            return None
        if whole.ratio is None or not _is_scored(whole):
            return None
        trials = [t for t in view.trials if t.part == "search" and _is_mixture(survey, t)]
        lowest = floor(view, whole.plan.backend)
        return cls(survey, view.budget, whole, trials, lowest, RegionCosts.of(survey))

    def lost(self, trial: Trial) -> float | None:
        """Return what a trial lost over what it may; None where it was not scored."""
        return lost(trial.score, self.budget) if trial.score is not None else None

    def expected(self, trial: Trial) -> Mixture:
        """Return what was expected of one of its mixtures when it was proposed."""
        before = replace(self, mixtures=self.mixtures[: self.mixtures.index(trial)])
        return before._mixture(_in_float(self.survey, trial), trial.plan)

    def next(self) -> Mixture | None:
        """Return the mixture to try now; None where there is none worth it."""
        fails, keeps = self._bounds
        if len(self.mixtures) >= MOST or self.floor >= _AIM or fails is None:
            return None
        in_float = set(self.costs.unmeasured)
        for names in [(), *self.costs.order()[:-1]]:  # behind the last nothing of the plan is left
            in_float |= set(names)
            summed = self.costs.loss(in_float)
            if in_float and summed < fails[0] and self._lost_at(summed) <= _AIM:
                break
        else:
            return None
        if summed <= keeps[0]:
            return None
        mixture = self._mixture(frozenset(in_float))
        best = min(
            (
                t.ratio.value
                for t in self.mixtures
                if t.ratio and (_is_scored(t) and t.status is not Status.FAILS)
            ),
            default=math.inf,
        )
        return mixture if mixture.ratio < _LEAST_GAIN * best else None

    def _mixture(self, in_float: frozenset[str], plan: Plan | None = None) -> Mixture:
        if plan is None:
            plan = Plan(mixed(self.survey, in_float), self.survey.plan.backend)
        left = tuple(r.region for r in self.survey.regions if r.region in in_float)
        assert self.whole.ratio is not None
        own, pace = self.whole.ratio.value, 1.0
        for trial in self.mixtures:
            back = self.costs.time(_in_float(self.survey, trial))
            if trial.ratio is not None and back > 0:
                pace = min(_SLOWER[1], max(_SLOWER[0], (trial.ratio.value - own) / back))
        return Mixture(
            self.survey,
            plan,
            left,
            max(0.1 * own, own + pace * self.costs.time(in_float)),
            self._lost_at(self.costs.loss(in_float)) * (1 - self.floor) + self.floor,
            first=not self.mixtures,
        )

    def _lost_at(self, summed: float) -> float:
        """Return what regions lose over what is left to them to lose.

        Args:
            summed: Of single losses.
        """
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
        summed, alone = self.costs.loss(), self.survey.whole_cost
        if math.isfinite(alone) and alone > 0:
            far = not self.mixtures and self._above(self.lost(self.whole) or 0.0) > _FAR
            if far or self.costs.unmeasured:
                summed = alone
            elif not self.mixtures:
                summed = min(summed, alone)
        sums = [summed, *(self.costs.loss(_in_float(self.survey, t)) for t in self.mixtures)]
        points = (
            (summed, self._above(gone))
            for summed, trial in zip(sums, (self.whole, *self.mixtures), strict=True)
            if _is_scored(trial) and (gone := self.lost(trial)) is not None
        )
        known = [one for one in points if math.isfinite(one[1]) and one[0] > 0]
        fails = min((one for one in known if one[1] > 1), default=None)
        below = (one for one in known if one[1] <= 1 and (fails is None or one[0] < fails[0]))
        return fails, max(below, default=(0.0, 0.0))

    def _above(self, gone: float) -> float:
        """Return what regions lose over what the float model there leaves to them."""
        return max(0.0, gone - self.floor) / max(1 - self.floor, 1e-9)


def mixtures(view: View) -> Iterator[Mixture]:
    """Yield of every survey the mixture to try next."""
    for survey in view.surveys:
        mixing = Mixing.of(survey, view)
        mixture = None if mixing is None else mixing.next()
        if mixture is not None and not view.tried(mixture.plan):
            yield mixture


def expected_mixtures(view: View, known: Expectations) -> dict[Candidate, Expected]:
    """Return the mixtures to try next, each with what the search expects of it.

    Args:
        known: Of the view.
    """
    found = list(mixtures(view)) if view.by_region else []
    if not found:
        return {}
    others, takes = known.of([one.plan for one in found]), known.durations

    def seconds(one: Mixture) -> float:
        rebuilt = _REBUILT * takes.building_s(one.survey.plan.recipe)
        return rebuilt + takes.running_s(one.plan)

    return {
        Candidate(one.plan, REGIONS, one.why): replace(
            of, latency=one.latency, keeps=one.keeps, seconds=seconds(one)
        )
        for one, of in zip(found, others, strict=True)
    }


def _is_mixture(survey: Survey, trial: Trial) -> bool:
    if trial.plan.backend != survey.plan.backend:
        return False
    return bool(parted(survey, trial.plan.recipe))


def _in_float(survey: Survey, trial: Trial) -> frozenset[str]:
    return parted(survey, trial.plan.recipe) or frozenset()


def _is_scored(trial: Trial) -> bool:
    return trial.score is not None and not math.isnan(trial.score.value)
