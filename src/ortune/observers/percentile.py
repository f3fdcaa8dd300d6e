"""The range that holds all but the rarest values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.observer import Accumulator, Observer, Range
from ortune.statistics.histogram import Histogram, folded

BINS = 2048


@dataclass(frozen=True)
class Percentile(Observer):
    """Clips the tails: one pass finds the extent, a second one counts values in 2048 equal bins.

    The result lies within one bin of the exact percentile of all values seen.

    Attributes:
        p: Share of the values to keep, in percent; half of the rest is clipped on either side.
        symmetric: Keep a range around zero, by the percentile of the magnitudes.
    """

    passes: ClassVar[int] = 2

    p: float = 99.99
    symmetric: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.p <= 100:
            raise BadSettings(f"percentile(p={self.p}) keeps nothing", fix="use 0 < p <= 100")

    def start(self) -> Accumulator:
        return _Percentile(self.p, self.symmetric)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return 8 * BINS


class _Percentile:
    def __init__(self, p: float, symmetric: bool) -> None:
        self._share = p / 100
        self._symmetric = symmetric
        self._histogram = Histogram(BINS, around_zero=symmetric)

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._histogram.update(turn, values)

    def result(self) -> Range:
        found, seen = self._histogram, self._histogram.seen
        if self._symmetric:
            top = max(0.0 - seen.low, seen.high)
            if found.counts.any():
                counts = folded(found.counts, found.at_zero)
                edges = np.arange(counts.size + 1) * found.width
                top = min(top, _at(counts, edges, self._share))
            return Range(0.0 - top, top)
        if not found.counts.any():
            return seen
        tail = (1 - self._share) / 2
        edges = np.linspace(seen.low, seen.high, BINS + 1)
        return Range(_at(found.counts, edges, tail), _at(found.counts, edges, 1 - tail))


def _at(counts: NDArray[np.int64], edges: NDArray[Any], share: float) -> float:
    below = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    return float(np.interp(share, below, edges))
