"""Every plan there is, once: what a table of measurements holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ortune.core.step import AS_IS
from ortune.core.trial import Plan, Proposal, Status, UntriedPlan
from ortune.search.compare import select_leaders
from ortune.search.policy import LeftOut, View
from ortune.search.recipe.space import Space


@dataclass(frozen=True)
class Exhaustive:
    """Try all that the space lists at full effort, and score whatever runs.

    Attributes:
        fastest: Plans around which every single setting is tried.
    """

    fastest: int = 10

    def next(self, view: View) -> Proposal | None:
        """Return the first plan without a trial."""
        return next(self._untried(view), None)

    def explain_untried(self, view: View) -> LeftOut:
        """Count what time has left untried, as far as it is known by now."""
        left = [found.plan for found in self._untried(view)]
        untried = tuple(UntriedPlan(str(plan), "no time left") for plan in left)
        return LeftOut((), len(untried), len(untried), untried)

    def _untried(self, view: View) -> Iterator[Proposal]:
        """Yield every plan without a trial once, in the order in which they are tried."""
        seen: set[str] = set()
        stages = (self._plans, self._rescues, self._extensions, self._settings)
        for found in chain.from_iterable(stage(view) for stage in stages):
            if found.plan.spelling not in seen and not view.has_trial(found.plan):
                seen.add(found.plan.spelling)
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
                for plan in view.space.list_rescues(trial.plan):
                    yield Proposal(plan, "rescue", f"{trial.plan} fails the budget", effort="full")

    def _extensions(self, view: View) -> Iterator[Proposal]:
        """What goes further than each plan that may win."""
        for trial in select_leaders(view.trials, view.goal):
            if trial.stage in ("search", "rescue"):
                for plan in view.space.list_extensions(trial.plan):
                    why = f"{trial.plan} keeps the budget"
                    yield Proposal(plan, "search", why, effort="full")

    def _settings(self, view: View) -> Iterator[Proposal]:
        """One setting at a time around the fastest, and each of these without padding."""
        stages = ("baseline", "search", "rescue")
        tried = [t for t in view.trials if t.stage in stages]
        for leader in select_leaders(tried, view.goal)[: self.fastest]:
            for setting, plans in self._around(view, leader.plan):
                for plan in plans:
                    why = f"{setting}, around {leader.plan}"
                    yield Proposal(plan, "runtime", why, effort="full", neighbour_of=leader.key)

    @staticmethod
    def _around(view: View, plan: Plan) -> Iterator[tuple[str, list[Plan]]]:
        for setting, plans in view.space.list_neighbours(plan).items():
            yield setting, [p for p in plans if not (view.space.exact and p.backend.lossy)]
        unpadded = view.space.without_padding(plan)
        if unpadded is not None and not view.space.is_unpadded(plan):
            yield "padding", [unpadded]


def ranked(space: Space) -> list[Plan]:
    """Return the plans of the first stage, best bets first, without the baseline itself.

    A bet's rank is the sum of two places: of the recipe among the backend's recipes (quantizers
    come before the merely cleaned model) and of the variant among the backend's variants. Behind
    buckets the original comes before all.
    """
    bets: list[tuple[float, Plan]] = []
    for target in space.targets:
        for place, backend in enumerate(space.list_variants(target)):
            offered = list(space.list_recipes(target, backend))
            for index, recipe in enumerate(offered):
                worth = len(offered) if recipe.name == "clean" else max(0, index - 1)
                bets.append((worth + 1.5 * place, Plan(recipe, backend)))
    original = Plan(AS_IS, space.baseline)
    found = [plan for _, plan in sorted(bets, key=lambda bet: bet[0]) if plan != original]
    first = space.without_padding(original)
    return list(dict.fromkeys([*([first] if first is not None else []), *found]))
