"""A policy that tries one named recipe, for tests of what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

from ortune.core.proposal import Proposal
from ortune.core.trial import Plan
from ortune.search.policy import Policy, View


@dataclass(frozen=True)
class Pick(Policy):
    """Tries the first plan of a recipe.

    Attributes:
        recipe: Its name.
    """

    recipe: str = "int8-weights"

    def next(self, view: View) -> Proposal | None:
        """Return the plan unless it has a trial."""
        for target in view.space.targets:
            for backend in view.space.variants(target):
                for recipe in view.space.recipes(target, backend):
                    if recipe.name == self.recipe:
                        plan = Plan(recipe, backend)
                        return None if view.tried(plan) else Proposal(plan, "search", "picked")
        return None
