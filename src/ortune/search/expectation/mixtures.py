"""Mixtures that surveys of regions lead to: which to try next, and what each should bring.

Times of regions add nearly and so do their losses (arXiv 2505.13060): an integer programme over
them finds the fastest mixture that loses no more than the budget allows. What the whole plan lost
tells how much the sum of single losses is in the budget's measure; each mixture that was measured
tells it again, nearer to the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ortune.core.budget import Budget
from ortune.core.trial import Plan, Status, Trial
from ortune.regions.mixing import left_in_float, mixed
from ortune.regions.programme import Choice, solve
from ortune.regions.survey import RegionCost, Survey
from ortune.search.expectation.candidates import REGIONS, Candidate
from ortune.search.expectation.expectations import Expectations, Expected
from ortune.search.expectation.losses import LossCurve, curves
from ortune.search.expectation.strain import lost
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View

MOST = 4
"""Mixtures of a survey that are tried."""
_AIM = 0.9
"""Share of the allowed loss that a mixture is solved for: near the limit the answer is luck."""
_LEAST_GAIN = 0.99
"""A further mixture must be expected to take less than this share of the best before it."""
_TINY = 0.001
"""Share of the original's latency below which a gain that may be none counts as none."""
_SPREAD = (0.5, 0.25)
"""Standard deviation of the logarithm of a loss: by the whole plan alone, and by a mixture."""
_TIME_SD = (0.06, 0.03)
"""Of the logarithm of a ratio, likewise."""
_FEW = 3
"""Regions whose names a reason gives."""
_FLOAT, _OWN = "float", "plan"


@dataclass(frozen=True)
class Mixture:
    """A mixture and what is expected of it.

    Attributes:
        left: Regions in float.
        ratio: Of its latency to the original's.
        lost: Over what may be lost.
        corrected: By what its summed costs were multiplied to get there.
        first: No mixture of the survey was measured before it.
    """

    survey: Survey
    plan: Plan
    left: tuple[str, ...]
    ratio: float
    lost: float
    corrected: float
    first: bool

    @property
    def latency(self) -> Normal:
        """Logarithm of its ratio."""
        return Normal(math.log(self.ratio), _TIME_SD[not self.first])

    @property
    def keeps(self) -> float:
        """The chance that it keeps the budget."""
        if self.lost <= 0:
            return 0.97
        return 0.97 * Normal(math.log(self.lost), _SPREAD[not self.first]).below(0.0)

    @property
    def why(self) -> str:
        """The short form of where it comes from."""
        shown = ", ".join(self.left[:_FEW]) + ", ..." * (len(self.left) > _FEW)
        return (
            f"regions: {len(self.left)} of {len(self.survey.regions)} in float ({shown}): "
            f"expected ratio {self.ratio:.2f}, {self.lost:.2f} of the allowed loss"
        )


@dataclass(frozen=True)
class Mixing:
    """What a survey and the trials of its plan and mixtures tell.

    Attributes:
        whole: The trial of the surveyed plan.
        mixtures: Trials of its mixtures where the plan runs, in order.
    """

    survey: Survey
    budget: Budget
    whole: Trial
    mixtures: Sequence[Trial] = field(default=())

    @classmethod
    def of(cls, survey: Survey, view: View) -> Mixing | None:
        """Return it where the plan was timed and scored; None where nothing can follow."""
        whole = view.find(survey.plan)
        if whole is None or view.budget is None or survey.error:
            return None
        if whole.ratio is None or not _scored(whole):
            return None
        found = [t for t in view.trials if t.part == "search" and _mixes(survey, t)]
        return cls(survey, view.budget, whole, found)

    def before(self, trial: Trial) -> Mixing:
        """Return what was known when one of its mixtures was proposed."""
        at = self.mixtures.index(trial)
        return Mixing(self.survey, self.budget, self.whole, self.mixtures[:at])

    def expected(self, trial: Trial) -> Mixture:
        """Return what was expected of one of its mixtures when it was proposed."""
        left, before = _left(self.survey, trial), self.before(trial)
        by = next((curve for curve, found in before._found if found == left), None)
        return before._mixture(left, by or next(iter(before._curves), None), trial.plan)

    def lost(self, trial: Trial) -> float | None:
        """Return what a trial lost over what it may; None where it was not scored."""
        return lost(trial.score, self.budget) if trial.score is not None else None

    def next(self) -> Mixture | None:
        """Return the mixture to try now; None where there is none worth it."""
        if len(self.mixtures) >= MOST:
            return None
        tried = {_left(self.survey, t) for t in self.mixtures}
        best = min((t.ratio.value for t in self._kept if t.ratio), default=math.inf)
        for curve, left in self._found:
            made = self._mixture(left, curve)
            if left not in tried and made.ratio < _LEAST_GAIN * best:
                return made
        return None

    @cached_property
    def _found(self) -> Sequence[tuple[LossCurve | None, frozenset[str]]]:
        """Return which regions are best left in float by each curve, where some are, not all."""
        # Where no region costs anything, and the plan keeps the budget, all is allowed.
        free: list[LossCurve | None] = [None] if self._kept and not self._curves else []
        found = []
        for curve in [*self._curves, *free]:
            room = math.inf if curve is None else curve.room(_AIM)
            solution = solve(self._choices, (), room)
            if solution is not None and solution.of(_OWN):
                left = frozenset({*solution.of(_FLOAT), *self._unmeasured})
                found += [(curve, left)] if left else []
        return found

    # --- time -------------------------------------------------------------------------------

    def _mixture(
        self, left: frozenset[str], curve: LossCurve | None, plan: Plan | None = None
    ) -> Mixture:
        named = tuple(r.region for r in self.survey.regions if r.region in left)
        if plan is None:
            plan = Plan(mixed(self.survey, named), self.survey.plan.backend)
        summed = self._summed(left)
        gone = curve.at(summed) if curve else 0.0
        factor = gone / summed if summed else 1.0
        return Mixture(
            *(self.survey, plan, named, self._ratio(left), gone, factor),
            first=not self.mixtures,
        )

    def _ratio(self, left: frozenset[str]) -> float:
        """Return the expected ratio: the plan's, and what regions in float do not save."""
        assert self.whole.ratio is not None
        back = self._pace * self._given_back(left)
        return max(0.1 * self.whole.ratio.value, self.whole.ratio.value + back)

    def _given_back(self, left: frozenset[str]) -> float:
        found = (r.time_gained.value for r in self.survey.regions if r.region in left)
        return math.fsum(gained for gained in found if math.isfinite(gained))

    @cached_property
    def _pace(self) -> float:
        """Return what the last mixture lost in time over what its regions were to lose."""
        assert self.whole.ratio is not None
        for trial in reversed(self.mixtures):
            back = self._given_back(_left(self.survey, trial))
            if trial.ratio is not None and back > _TINY:
                found = (trial.ratio.value - self.whole.ratio.value) / back
                return min(4.0, max(0.25, found))
        return 1.0

    # --- accuracy ---------------------------------------------------------------------------

    @cached_property
    def _choices(self) -> Mapping[str, Sequence[Choice]]:
        """What makes no difference stays as it is: the plan's step leaves it in float already."""
        own = {r.region: Choice(_OWN, -_gain(r), _cost(r)) for r in self.survey.regions}
        given_back = Choice(_FLOAT, 0.0, 0.0)
        return {
            name: (one, given_back) if one.time or one.cost else (one,)
            for name, one in own.items()
        }

    @cached_property
    def _unmeasured(self) -> frozenset[str]:
        return frozenset(name for name, (own, *_) in self._choices.items() if not own.measured)

    def _summed(self, left: frozenset[str]) -> float:
        taken = (own for name, (own, *_) in self._choices.items() if name not in left)
        return math.fsum(one.cost for one in taken if one.measured)

    @cached_property
    def _curves(self) -> Sequence[LossCurve]:
        points = [
            (self._summed(_left(self.survey, trial)), gone)
            for trial in (self.whole, *self.mixtures)
            if _scored(trial) and (gone := self.lost(trial)) is not None
        ]
        return curves(points, self.survey.whole_cost, bool(self._unmeasured))

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


def expected_mixtures(view: View) -> dict[Candidate, Expected]:
    """Return the mixtures to try next, each with what the search expects of it."""
    found = list(mixtures(view)) if view.by_region else []
    if not found:
        return {}
    others = Expectations(view).of([one.plan for one in found])
    return {
        Candidate(one.plan, REGIONS, one.why): replace(of, latency=one.latency, keeps=one.keeps)
        for one, of in zip(found, others, strict=True)
    }


def _mixes(survey: Survey, trial: Trial) -> bool:
    if trial.plan.backend != survey.plan.backend:
        return False
    return bool(left_in_float(survey, trial.plan.recipe))


def _left(survey: Survey, trial: Trial) -> frozenset[str]:
    return left_in_float(survey, trial.plan.recipe) or frozenset()


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
