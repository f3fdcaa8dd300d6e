"""Coordinate descent over settings, each judged by pairs with the defaults: decisions alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from ortune.core.trial import Interval
from ortune.engine.instances import Serving
from ortune.load_testing.goal.space import COORDINATES, ServingSpace
from ortune.measurement.timing.stats import student

MARGIN = 1.03
"""What settings must bring over those that they start from; less is noise more often than not."""
CONFIDENCE = 0.95
_LEAST_SD = 0.01
"""Of a pair's log-ratio: some pairs that agree by chance are no proof of none."""


@dataclass
class Tried:
    """Settings and what pairs with the defaults said of them.

    Attributes:
        ratios: Their score over the defaults', a pair each; more is better.
    """

    settings: Serving
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The geometric mean; 0 where they could not be served."""
        if not self.ratios or min(self.ratios) <= 0:
            return 0.0
        return statistics.geometric_mean(self.ratios)


def descend(space: ServingSpace, start: Serving) -> Generator[Serving, float | None, list[Tried]]:
    """Walk from the defaults along one coordinate after the other, as long as it gets better.

    Yields settings and is sent their score over the defaults', both measured in one pair; None
    when the time is over. Settings that seem better in a first pair get a second.

    Returns:
        What was tried, the best first; empty where there is nothing to try.
    """
    tried = {start: Tried(start, [1.0])}
    best = tried[start]
    moved = True
    while moved:
        moved = False
        for name in COORDINATES:
            for direction in (1, -1):
                walked = False
                for one in space.neighbours(best.settings, name, direction):
                    if one in tried:
                        break
                    tried[one] = Tried(one)
                    if not (yield from _paired(tried[one], best.ratio)):
                        return _ranked(tried, start, best)
                    if tried[one].ratio <= best.ratio * MARGIN:
                        break
                    best, moved, walked = tried[one], True, True
                if walked:  # what lies behind was worse on the way here
                    break
    return _ranked(tried, start, best)


def _paired(one: Tried, to_beat: float) -> Generator[Serving, float | None, bool]:
    """Ask for one pair, and for another where that is good; False when the time is over."""
    for _ in range(2):
        found = yield one.settings
        if found is None:
            return False
        one.ratios.append(found)
        if one.ratio <= to_beat * MARGIN:
            return True
    return True


def _ranked(tried: dict[Serving, Tried], start: Serving, best: Tried) -> list[Tried]:
    """Return where the walk ended, then the rest: a lone pair's luck is no rank."""
    others = [one for one in tried.values() if one.settings != start and one.ratios]
    return sorted(others, key=lambda one: (one is not best, -one.ratio))


def confirmed(ratios: Sequence[float]) -> Interval | None:
    """Return the mean ratio of fresh pairs with its 95 % interval, None for less than two.

    Student's t over the pairs' log-ratios. The pairs must be none that anything was chosen by.
    """
    if len(ratios) < 2 or min(ratios) <= 0:
        return None
    logs = [math.log(one) for one in ratios]
    middle, sd = statistics.fmean(logs), max(statistics.stdev(logs), _LEAST_SD)
    half = student(CONFIDENCE, len(logs) - 1) * sd / math.sqrt(len(logs))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
