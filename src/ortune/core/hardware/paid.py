"""What paid on a kind of machine in earlier searches: counts and means, no names of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PlanTally:
    """How fast like plans were, each search counted once.

    Attributes:
        model: What the models have in common: see `search.expectation.priors.model_kind`.
        features: What the plans have in common, with weights: see
            `search.expectation.features.latency_features`.
        searches: That timed one.
        mean: Of the logarithm of latency over the original's.
        squares: Sum of its squared deviations from the mean.
    """

    model: tuple[str, ...]
    features: Mapping[str, float]
    searches: int = 1
    mean: float = 0.0
    squares: float = 0.0

    @property
    def key(self) -> tuple[str, ...]:
        """What it is of: that of no other tally is the same."""
        return (*self.model, *self.features)


@dataclass(frozen=True)
class Paid:
    """All tallies of a kind of machine, what was timed last first."""

    tallies: tuple[PlanTally, ...] = ()


NOTHING = Paid()
"""Of a machine that nothing is known of."""
