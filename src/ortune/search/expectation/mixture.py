"""A mixture of a survey's regions, and what is expected of it before it is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortune.core.trial import Plan
from ortune.regions.survey import Survey
from ortune.search.expectation.surrogate import Normal

_SPREAD = (0.5, 0.25)
"""Standard deviation of the logarithm of a loss: by the whole plan alone, and by a mixture."""
_TIME_SD = (0.06, 0.03)
"""Of the logarithm of a ratio, likewise."""
_FEW = 3
"""Regions whose names a reason gives."""


@dataclass(frozen=True)
class Mixture:
    """A mixture and what is expected of it.

    Attributes:
        left: Regions in float.
        stored: Regions whose weights alone are stored in integers.
        ratio: Of its latency to the original's.
        lost: Over what may be lost.
        corrected: By what its summed costs were multiplied to get there.
        first: No mixture of the survey was measured before it.
    """

    survey: Survey
    plan: Plan
    left: tuple[str, ...]
    stored: tuple[str, ...]
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
        every = len(self.survey.regions)
        parts = ((self.left, "in float"), (self.stored, "with integer weights alone"))
        some = (
            f"{len(names)} of {every} {how} ({_shown(names)})" for names, how in parts if names
        )
        return (
            f"regions: {', '.join(some)}: "
            f"expected ratio {self.ratio:.2f}, {self.lost:.2f} of the allowed loss"
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_FEW]) + ", ..." * (len(names) > _FEW)
