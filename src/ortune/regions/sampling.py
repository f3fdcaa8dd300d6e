"""Which samples costs are taken on: those on which the plan loses most, with less weight.

Losses of one plan may differ a hundredfold between samples, and where a budget looks at all of
them together a few decide. Samples are drawn with a chance that grows with what the whole plan
loses on them, and each weighs by its chance, so that the weighted mean is that of all (Hansen and
Hurwitz, Annals of Mathematical Statistics 14, 1943). Half of the chance is the same for all: a
region may lose where the whole does not. The draw is systematic, so that it is the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortune.core.workload import spread
from ortune.regions.losses import Floats

_ALIKE = 0.5
"""Of the chance, that is the same for all samples."""


@dataclass(frozen=True)
class Subset:
    """Some of many samples.

    Attributes:
        places: Among the many, in their order; each once.
        weights: One each: the mean over the drawn of weight times loss stands for the mean loss of
            the many.
    """

    places: tuple[int, ...]
    weights: tuple[float, ...]


def evenly(many: int, count: int) -> Subset:
    """Return at most `count` of `many` samples, spread over them, all of one weight."""
    places = spread(many, count)
    return Subset(places, (1.0,) * len(places))


def telling(losses: Floats, count: int) -> Subset:
    """Return at most `count` samples that tell what a mean loss is made of.

    Args:
        losses: Of the whole plan, shape [samples]; infinite where outputs are broken. Only finite
            positive ones raise a sample's chance.
    """
    many = len(losses)
    size = np.where(np.isfinite(losses), np.maximum(losses, 0.0), 0.0)
    if count >= many or not size.sum() > 0:
        return evenly(many, count)
    chance = _ALIKE / many + (1 - _ALIKE) * size / size.sum()
    order = np.argsort(-size, kind="stable")
    ends = np.cumsum(chance[order])
    points = ends[-1] * (np.arange(count) + 0.5) / count
    places, times = np.unique(order[np.searchsorted(ends, points)], return_counts=True)
    weights = times * len(places) / (count * many * chance[places])
    return Subset(tuple(map(int, places)), tuple(map(float, weights)))
