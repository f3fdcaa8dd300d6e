"""Orders of a search for tests of what becomes of plans: put in place of `search.adaptive`.

``python -m tests.picking ARGUMENTS`` is ``ortune ARGUMENTS`` with plans `InOrder`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import chain

import pytest

from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe
from ortune.core.trial import Plan, Proposal
from ortune.search import optimize
from ortune.search.compare import select_leaders
from ortune.search.policy import LeftOut, Policy, View


def searching_by(patch: pytest.MonkeyPatch, policy: Policy) -> None:
    """Have `optimize` try what a policy proposes."""
    patch.setattr(optimize, "Adaptive", lambda: policy)


@dataclass(frozen=True)
class Pick:
    """Tries one quantizer on the first backend, or the original where none is named."""

    step: str = "int8-weights"

    def next(self, view: View) -> Proposal | None:
        recipe = Recipe("picked", (parse_plugin(Quantizer, self.step),)) if self.step else AS_IS
        plan = Plan(recipe, view.space.targets[0].backend)
        return None if view.has_trial(plan) else Proposal(plan, "search", "picked")

    def explain_untried(self, view: View) -> LeftOut:
        return LeftOut()


@dataclass(frozen=True)
class Glance:
    """Screens the plans of each variant in order, unscored, until it has seen enough."""

    most: int = 2

    def next(self, view: View) -> Proposal | None:
        if len(view.trials) > self.most:
            return None
        for plan in view.space.all_plans:
            if plan.recipe.steps and not view.has_trial(plan):
                return Proposal(plan, "glance", "next", effort="screen", score=False)
        return None

    def explain_untried(self, view: View) -> LeftOut:
        return LeftOut(("glanced at a few",), late=1)


@dataclass(frozen=True)
class InOrder:
    """Tries plans as they are listed, then settings around the best: no clock changes that."""

    most: int = 12

    def next(self, view: View) -> Proposal | None:
        if len(view.trials) > self.most:
            return None
        found = (trial.plan for trial in select_leaders(view.trials, view.goal))
        best = next((plan for plan in found if plan in view.space.all_plans), None)
        around = view.space.list_neighbours(best).values() if best is not None else ()
        for plan in (*view.space.all_plans, *chain.from_iterable(around)):
            if not view.has_trial(plan):
                return Proposal(plan, "search", "next")
        return None

    def explain_untried(self, view: View) -> LeftOut:
        return LeftOut()


if __name__ == "__main__":
    from ortune.cli.main import main

    with pytest.MonkeyPatch.context() as patch:
        searching_by(patch, InOrder())
        sys.exit(main())
