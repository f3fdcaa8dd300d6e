"""Mixtures that surveys of regions lead to: which to try next, and what each should bring.

Times of regions add nearly and so do their losses (arXiv 2505.13060): an integer programme over
them finds the fastest mixture that loses no more than the budget allows. What the whole plan lost
tells how much the sum of single losses is in the budget's measure; each mixture that was measured
tells it again, nearer to the limit. Where integer weights alone were measured on the same backend,
a region may take them in the place of float.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ortune.core.budget import Budget
from ortune.core.trial import Plan, Status, Trial
from ortune.regions.mixing import GivenBack, mixed, parted
from ortune.regions.programme import Both, Choice, Solution, solve
from ortune.regions.survey import RegionCost, Survey
from ortune.search.expectation.candidates import REGIONS, Candidate
from ortune.search.expectation.expectations import Expectations, Expected
from ortune.search.expectation.losses import LossCurve, curves
from ortune.search.expectation.mixture import Mixture
from ortune.search.expectation.storing import Storing
from ortune.search.expectation.strain import floor, lost
from ortune.search.policy import View

MOST = 4
"""Mixtures of a survey that are tried."""
_AIM = 0.9
"""Share of the allowed loss that a mixture is solved for: near the limit the answer is luck."""
_LEAST_GAIN = 0.99
"""A further mixture must be expected to take less than this share of the best before it."""
_REBUILT = 0.3
"""Of what the surveyed plan took to build: the kit's observations are known (a quarter, twice)."""
_TINY = 0.001
"""Share of the original's latency below which a gain that may be none counts as none."""
_FLOAT, _STORED, _OWN = "float", "weights", "plan"


@dataclass(frozen=True)
class Mixing:
    """What a survey and the trials of its plan and mixtures tell.

    Attributes:
        whole: The trial of the surveyed plan.
        mixtures: Trials of its mixtures where the plan runs, in order.
        storing: What integer weights alone bring there; None where that is not known.
        floor: What the float model loses there over what may be lost: no region gives it back.
    """

    survey: Survey
    budget: Budget
    whole: Trial
    mixtures: Sequence[Trial] = field(default=())
    storing: Storing | None = None
    floor: float = 0.0

    @classmethod
    def of(cls, survey: Survey, view: View) -> Mixing | None:
        """Return it where the plan was timed and scored; None where nothing can follow."""
        whole = view.find(survey.plan)
        if whole is None or view.budget is None or survey.error:
            return None
        if whole.ratio is None or not _scored(whole):
            return None
        found = [t for t in view.trials if t.part == "search" and _mixes(survey, t)]
        lowest = floor(view, whole.plan.backend)
        return cls(survey, view.budget, whole, found, Storing.of(whole, view), lowest)

    def before(self, trial: Trial) -> Mixing:
        """Return what was known when one of its mixtures was proposed."""
        at = self.mixtures.index(trial)
        return replace(self, mixtures=self.mixtures[:at])

    def expected(self, trial: Trial) -> Mixture:
        """Return what was expected of one of its mixtures when it was proposed."""
        parts, before = _parts(self.survey, trial), self.before(trial)
        by = next((curve for curve, found in before._found if found == parts), None)
        return before._mixture(parts, by or next(iter(before._curves), None), trial.plan)

    def lost(self, trial: Trial) -> float | None:
        """Return what a trial lost over what it may; None where it was not scored."""
        return lost(trial.score, self.budget) if trial.score is not None else None

    def next(self) -> Mixture | None:
        """Return the mixture to try now; None where there is none worth it."""
        if len(self.mixtures) >= MOST or self.floor >= _AIM:
            return None
        tried = [_parts(self.survey, t) for t in self.mixtures]
        best = min((t.ratio.value for t in self._kept if t.ratio), default=math.inf)
        for curve, parts in self._found:
            made = self._mixture(parts, curve)
            if parts not in tried and made.ratio < _LEAST_GAIN * best:
                return made
        return None

    @cached_property
    def _found(self) -> Sequence[tuple[LossCurve | None, GivenBack]]:
        """Return which regions are best given back by each curve, where some are, not all."""
        # Where no region costs anything, and the plan keeps the budget, all is allowed.
        free: list[LossCurve | None] = [None] if self._kept and not self._curves else []
        found = []
        for curve in [*self._curves, *free]:
            room = math.inf if curve is None else curve.room(self._above(_AIM))
            solution = solve(self._choices, (), room, pairs=self._shared)
            if solution is not None and solution.of(_OWN):
                parts = self._given(solution)
                found += [(curve, parts)] if parts else []
        return found

    def _given(self, solution: Solution) -> GivenBack:
        left = frozenset({*solution.of(_FLOAT), *self._unmeasured})
        stored = frozenset(solution.of(_STORED))
        step = self.storing.step if stored and self.storing is not None else None
        return GivenBack(left, stored, step)

    # --- time -------------------------------------------------------------------------------

    def _mixture(
        self, parts: GivenBack, curve: LossCurve | None, plan: Plan | None = None
    ) -> Mixture:
        left, stored = self._named(parts.left), self._named(parts.stored)
        if plan is None:
            plan = Plan(mixed(self.survey, parts), self.survey.plan.backend)
        summed = self._summed(parts)
        gone = curve.at(summed) * (1 - self.floor) + self.floor if curve else 0.0
        factor = gone / summed if summed else 1.0
        first, ratio = not self.mixtures, self._ratio(parts)
        return Mixture(self.survey, plan, left, stored, ratio, gone, factor, first)

    def _named(self, regions: frozenset[str]) -> tuple[str, ...]:
        return tuple(r.region for r in self.survey.regions if r.region in regions)

    def _ratio(self, parts: GivenBack) -> float:
        """Return the expected ratio: the plan's, and what regions given back do not save."""
        assert self.whole.ratio is not None
        back = self._pace * self._given_back(parts)
        return max(0.1 * self.whole.ratio.value, self.whole.ratio.value + back)

    def _given_back(self, parts: GivenBack) -> float:
        """Return what regions save as the plan has them, and no longer as they are."""
        share = self.storing.gains if self.storing is not None else 0.0
        back = dict.fromkeys(parts.left, 1.0) | dict.fromkeys(parts.stored, 1.0 - share)
        found = (
            back[r.region] * r.time_gained.value for r in self.survey.regions if r.region in back
        )
        return math.fsum(gained for gained in found if math.isfinite(gained))

    @cached_property
    def _pace(self) -> float:
        """Return what the last mixture lost in time over what its regions were to lose."""
        assert self.whole.ratio is not None
        for trial in reversed(self.mixtures):
            back = self._given_back(_parts(self.survey, trial))
            if trial.ratio is not None and back > _TINY:
                found = (trial.ratio.value - self.whole.ratio.value) / back
                return min(4.0, max(0.25, found))
        return 1.0

    # --- accuracy ---------------------------------------------------------------------------

    @cached_property
    def _choices(self) -> Mapping[str, Sequence[Choice]]:
        """What makes no difference stays as it is: the plan's step leaves it in float already."""
        return {region.region: tuple(self._offered(region)) for region in self.survey.regions}

    def _offered(self, region: RegionCost) -> Iterator[Choice]:
        """Yield the plan's precision first, then integer weights where they help, then float."""
        own, known = Choice(_OWN, -_gain(region), _cost(region)), self.storing
        yield own
        if not own.time and not own.cost:
            return
        if known is not None and known.takes(region.ops) and own.measured and own.time < 0:
            yield Choice(_STORED, known.gains * own.time, known.loses * own.cost)
        yield Choice(_FLOAT, 0.0, 0.0)

    @cached_property
    def _unmeasured(self) -> frozenset[str]:
        return frozenset(name for name, (own, *_) in self._choices.items() if not own.measured)

    @cached_property
    def _shared(self) -> Sequence[Both]:
        """What neighbours lose once where both are as the plan has them.

        Of what was not measured nothing is in the sums, and so nothing twice.
        """
        return [
            Both(pair.one, pair.two, _OWN, pair.cost)
            for pair in self.survey.shared
            if not self._unmeasured & {pair.one, pair.two}
        ]

    def _summed(self, parts: GivenBack) -> float:
        """Return the single losses of what is not given back, without what is counted twice."""
        loses = self.storing.loses if self.storing is not None else 0.0
        share = dict.fromkeys(parts.left, 0.0) | dict.fromkeys(parts.stored, loses)
        taken = (
            share.get(name, 1.0) * own.cost
            for name, (own, *_) in self._choices.items()
            if own.measured
        )
        back = parts.left | parts.stored
        once = (-pair.cost for pair in self._shared if not back & {pair.one, pair.two})
        return max(0.0, math.fsum([*taken, *once]))

    @cached_property
    def _curves(self) -> Sequence[LossCurve]:
        points = [
            (self._summed(_parts(self.survey, trial)), self._above(gone))
            for trial in (self.whole, *self.mixtures)
            if _scored(trial) and (gone := self.lost(trial)) is not None
        ]
        return curves(points, self.survey.whole_cost, bool(self._unmeasured))

    def _above(self, gone: float) -> float:
        """Return what regions lose over what is left to them to lose."""
        return max(0.0, gone - self.floor) / max(1 - self.floor, 1e-9)

    @cached_property
    def _kept(self) -> Sequence[Trial]:
        """Return what keeps the budget of the plan itself and its mixtures."""
        found = (t for t in (self.whole, *self.mixtures) if t.ratio is not None and _scored(t))
        return [t for t in found if t.status is not Status.FAILS]


def mixtures(view: View) -> Iterator[Mixture]:
    """Yield of every survey the mixture to try next."""
    for survey in view.surveys:
        known = Mixing.of(survey, view)
        found = None if known is None else known.next()
        if found is not None and not view.tried(found.plan):
            yield found


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


def _mixes(survey: Survey, trial: Trial) -> bool:
    if trial.plan.backend != survey.plan.backend:
        return False
    return bool(parted(survey, trial.plan.recipe))


def _parts(survey: Survey, trial: Trial) -> GivenBack:
    return parted(survey, trial.plan.recipe) or GivenBack(frozenset())


def _scored(trial: Trial) -> bool:
    return trial.score is not None and not math.isnan(trial.score.value)


def _gain(region: RegionCost) -> float:
    """Return the time that a region saves; NaN where that, or its cost, is not known."""
    gained = region.time_gained
    if region.error or not math.isfinite(gained.value):
        return math.nan
    unclear = not (gained.low > 0 or gained.high < 0)
    return min(0.0, gained.value) if unclear and gained.value < _TINY else gained.value


def _cost(region: RegionCost) -> float:
    """Return what a region loses; what seems to gain loses nothing."""
    value = region.accuracy_cost.value
    return max(0.0, value) if math.isfinite(value) else math.nan
