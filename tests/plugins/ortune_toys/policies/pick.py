"""A policy that tries one step alone, for tests of what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan, Proposal
from ortune.search.policy import Policy, View


@dataclass(frozen=True)
class Pick(Policy):
    """Tries one quantizer on the first backend.

    Attributes:
        step: As spelled.
    """

    step: str = "int8-weights"

    def next(self, view: View) -> Proposal | None:
        """Return the plan unless it has a trial."""
        recipe = Recipe("picked", (parse(Quantizer, self.step),))
        plan = Plan(recipe, view.space.targets[0].backend)
        return None if view.tried(plan) else Proposal(plan, "search", "picked")
