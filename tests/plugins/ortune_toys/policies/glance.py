"""A policy that glances at every plan, and looks again at what it was told to."""

from __future__ import annotations

from dataclasses import dataclass

from ortune.core.trial import Plan, Proposal
from ortune.search.policy import LeftOut, Policy, View


@dataclass(frozen=True)
class Glance(Policy):
    """Screens the plans of each variant in order, unscored, until it has seen enough.

    Attributes:
        most: Plans to look at.
    """

    most: int = 2

    def next(self, view: View) -> Proposal | None:
        """Return the first recipe without a trial."""
        if len(view.trials) > self.most:
            return None
        for target in view.space.targets:
            for backend in view.space.variants(target):
                for recipe in view.space.recipes(target, backend):
                    plan = Plan(recipe, backend)
                    if recipe.steps and not view.tried(plan):
                        return Proposal(plan, "glance", "next", effort="screen", score=False)
        return None

    def left_out(self, view: View) -> LeftOut:
        """Say that more was there."""
        return LeftOut(("glanced at a few",), late=1)
