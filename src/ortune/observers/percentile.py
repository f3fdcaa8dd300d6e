"""The range that holds all but the rarest values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.observer import Accumulator, Observer, Range
from ortune.observers._extent import Extent

BINS = 2048


@dataclass(frozen=True)
class Percentile(Observer):
    """Clips the tails: one pass finds the extent, a second one counts values in 2048 equal bins.

    The result lies within one bin of the exact percentile of all values seen.

    Attributes:
        p: Share of the values to keep, in percent; half of the rest is clipped on either side.
    """

    passes: ClassVar[int] = 2

    p: float = 99.99

    def __post_init__(self) -> None:
        """Check the share.

        Raises:
            BadSettings: It is not above 0 and at most 100.
        """
        if not 0 < self.p <= 100:
            raise BadSettings(f"percentile(p={self.p}) keeps nothing", fix="use 0 < p <= 100")

    def start(self) -> Accumulator:
        """Return an accumulator that holds one histogram."""
        return _Percentile(self.p)


class _Percentile:
    def __init__(self, p: float) -> None:
        self._tail = (1 - p / 100) / 2
        self._extent = Extent()
        self._counts = np.zeros(BINS, dtype=np.int64)

    def update(self, turn: int, values: NDArray[Any]) -> None:
        if turn == 0:
            self._extent.widen(values)
            return
        low, high = self._extent.range.low, self._extent.range.high
        if values.size and low < high:
            # In float64 a bin stays wider than the rounding of any float32 extent.
            flat = values.ravel()
            for start in range(0, flat.size, 1 << 16):
                block = flat[start : start + (1 << 16)].astype(np.float64)
                self._counts += np.histogram(block, BINS, (low, high))[0]

    def result(self) -> Range:
        seen, total = self._extent.range, int(self._counts.sum())
        if not total:
            return seen
        edges = np.linspace(seen.low, seen.high, BINS + 1)
        share = np.concatenate([[0.0], np.cumsum(self._counts) / total])
        low, high = np.interp([self._tail, 1 - self._tail], share, edges)
        return Range(float(low), float(high))
