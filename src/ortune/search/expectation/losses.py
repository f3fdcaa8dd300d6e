"""What single losses of regions come to together: a curve through what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 1e-3
"""Of what may be lost; a plan that lost nothing on the samples lost about as little."""
_POWERS = (0.4, 2.5)
"""Between which a curve rises beyond the points: a score in steps by the root, power by itself."""


@dataclass(frozen=True)
class LossCurve:
    """A power law: what regions lose together, over what may be lost.

    Attributes:
        summed: Of single losses, at a point that was measured.
        lost: There.
        power: Of the sum.
        kept: The largest sum that is known to keep the budget.
    """

    summed: float
    lost: float
    power: float = 1.0
    kept: float = 0.0

    def at(self, summed: float) -> float:
        """Return what is lost with a sum of single losses."""
        return self.lost * math.pow(summed / self.summed, self.power) if summed > 0 else 0.0

    def room(self, lost: float) -> float:
        """Return the sum with which so much is lost, or one that is known to keep the budget."""
        return max(self.kept, self.summed * math.pow(lost / self.lost, 1 / self.power))


def curves(points: Sequence[tuple[float, float]], alone: float, unknown: bool) -> list[LossCurve]:
    """Return the curves to go by, the likeliest first; none where nothing is known.

    Where a sum is known that keeps the budget and a larger one that fails, the curve goes through
    both. Of failures alone it goes on from the two nearest to the limit. Of the whole plan alone
    there are two: single losses count as much as in the whole, or as much as alone, the nearer of
    both ends first.

    Args:
        points: Sum of single losses, and what was lost over what may be; the whole plan first.
        alone: What the whole loses in the unit of single losses; not finite where not known.
        unknown: Single losses of some regions are not known, so that the whole's sum lacks them.
    """
    known = [(s, max(_LEAST, lost)) for s, lost in points if s > 0 and lost < math.inf]
    kept = max((one for one in known if one[1] <= 1), default=None)
    failed = sorted((one for one in known if one[1] > 1), key=lambda one: one[1])
    fails = min(failed, default=None)
    if len(known) == 1 and fails:
        ends = [LossCurve(*fails)]
        if 0 < alone < math.inf:
            ends.append(LossCurve(alone, fails[1]))
        return ends[::-1] if fails[1] > 2 or unknown else ends
    if kept and fails and kept[0] < fails[0]:
        return [LossCurve(*fails, power=_power(kept, fails), kept=kept[0])]
    if fails:  # sums do not order what was measured, or nothing keeps the budget: step back
        further = next((one for one in failed if one[0] > fails[0] and one[1] > fails[1]), None)
        power = _power(fails, further) if further else 1.0
        return [LossCurve(*fails, power=min(_POWERS[1], max(_POWERS[0], power)))]
    return [LossCurve(*kept, kept=kept[0])] if kept else []


def _power(one: tuple[float, float], two: tuple[float, float]) -> float:
    return math.log(two[1] / one[1]) / math.log(two[0] / one[0])
