"""Everything there is: all plans, rescues and regions of what fails, settings of the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

from ortune.core.plugins.bounds import SHARE
from ortune.core.trial import Plan, Proposal, Status
from ortune.policies.staged import ranked
from ortune.regions.survey import SurveyRequest
from ortune.search.compare import leaders
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.mixtures import expected_mixtures
from ortune.search.expectation.surveying import surveys
from ortune.search.policy import LeftOut, Policy, View


@dataclass(frozen=True)
class Exhaustive(Policy):
    """Try all that the space lists at full effort, and score whatever runs.

    For tables of measurements, and for those who have hours: nothing is given up early.

    Attributes:
        fastest: Plans around which every single setting is tried.
        share: Of the time until which plans are begun; what is left is the finalists'.
    """

    fastest: int = 10
    share: Annotated[float, SHARE] = 0.9

    def next(self, view: View) -> Proposal | SurveyRequest | None:
        """Return the first plan without a trial, while there is time; one in any case."""
        if len(view.trials) > 1 and view.remaining(self.share) <= 0:
            return None
        return next(self._wished(view), None)

    def left_out(self, view: View) -> LeftOut:
        """Count what time has left untried, as far as it is known by now."""
        left = [found.plan for found in self._untried(view)]
        return LeftOut.of(left, "no time left") if left else LeftOut()

    def _wished(self, view: View) -> Iterator[Proposal | SurveyRequest]:
        """Yield what to do in order: regions follow the rescues."""
        for found in self._untried(view):
            if found.stage == "runtime":
                yield from (one.request for one in surveys(view))
            yield found
        yield from (one.request for one in surveys(view))

    def _untried(self, view: View) -> Iterator[Proposal]:
        """Yield every plan without a trial once, in the order in which they are tried."""
        seen: set[str] = set()
        stages = (self._plans, self._rescues, self._extensions, self._mixtures, self._settings)
        for found in chain.from_iterable(stage(view) for stage in stages):
            if found.plan.spelled not in seen and not view.tried(found.plan):
                seen.add(found.plan.spelled)
                yield found

    def _plans(self, view: View) -> Iterator[Proposal]:
        plans = ranked(view.space)
        for place, plan in enumerate(plans, 1):
            why = f"plan {place} of {len(plans)}"
            yield Proposal(plan, "search", why, effort="full")

    def _rescues(self, view: View) -> Iterator[Proposal]:
        """What may save each plan that fails, even where another rescue has saved it."""
        for trial in view.trials:
            if trial.part == "search" and trial.stage == "search" and trial.status is Status.FAILS:
                for plan in view.space.rescues(trial.plan):
                    yield Proposal(plan, "rescue", f"{trial.plan} fails the budget", effort="full")

    def _extensions(self, view: View) -> Iterator[Proposal]:
        """What goes further than each plan that may win."""
        for trial in leaders(view.trials, view.wanted):
            if trial.stage in ("search", "rescue"):
                for plan in view.space.extensions(trial.plan):
                    why = f"{trial.plan} keeps the budget"
                    yield Proposal(plan, "search", why, effort="full")

    def _mixtures(self, view: View) -> Iterator[Proposal]:
        """What surveys of regions lead to."""
        for one in expected_mixtures(view, Expectations(view)):
            yield Proposal(one.plan, one.stage, one.why, effort="full")

    def _settings(self, view: View) -> Iterator[Proposal]:
        """One setting at a time around the fastest, and each of these without padding."""
        stages = ("baseline", "search", "rescue", "regions")
        tried = [t for t in view.trials if t.stage in stages]
        for leader in leaders(tried, view.wanted)[: self.fastest]:
            for setting, plans in self._around(view, leader.plan):
                for plan in plans:
                    why = f"{setting}, around {leader.plan}"
                    yield Proposal(plan, "runtime", why, effort="full", neighbour_of=leader.key)

    @staticmethod
    def _around(view: View, plan: Plan) -> Iterator[tuple[str, list[Plan]]]:
        for setting, plans in view.space.neighbours(plan).items():
            yield setting, [p for p in plans if not (view.space.exact and p.backend.lossy)]
        unpadded = view.space.unpadded(plan)
        if unpadded is not None and not view.space.is_unpadded(plan):
            yield "padding", [unpadded]
