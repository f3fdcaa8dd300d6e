"""The range whose grid has the smallest expected error: some clipping for finer steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Range
from ortune.statistics.extent import balanced
from ortune.statistics.histogram import Binned, Histogram, folded

ROUNDS = 50


@dataclass(frozen=True)
class Mse(Binned):
    """Balances rounding and clipping: the sum of both squared errors over all values is smallest.

    Rounding costs ``step^2 / 12`` a value (values spread evenly over a step), but nothing at
    exactly zero, which every grid holds; clipping costs what the values' histogram says. Both are
    convex in the two ends of the range, so turning from one end to the other finds the optimum,
    within one bin.

    Attributes:
        bits: Of the grid that will cover the range.
        bins: Of the histogram.
        symmetric: The best range around zero.
    """

    bins: int = 4096

    def start(self) -> Accumulator:
        """Return an accumulator that holds one histogram."""
        return _Mse(self)


class _Mse:
    def __init__(self, settings: Mse) -> None:
        self._steps, self._symmetric = 2**settings.bits - 1, settings.symmetric
        self._histogram = Histogram(settings.bins, around_zero=True)

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._histogram.update(turn, values)

    def result(self) -> Range:
        found, seen = self._histogram, self._histogram.seen
        if not found.nonzero.any():
            return balanced(seen) if self._symmetric else seen
        if self._symmetric:
            top = min(max(0.0 - seen.low, seen.high), found.width * self._magnitude())
            return Range(0.0 - top, top)
        low, high = self._ends()
        return Range(max(seen.low, -low * found.width), min(seen.high, high * found.width))

    def _magnitude(self) -> int:
        """Return how many bins to keep on both sides of zero."""
        counts = folded(self._histogram.nonzero, self._histogram.at_zero)
        cut = _clipping(counts)
        spans = 2 * np.arange(cut.size)
        return int(np.argmin(cut + _rounding(int(counts.sum()), spans, self._steps - 1)))

    def _ends(self) -> tuple[int, int]:
        """Return how many bins to keep below and above zero."""
        counts, zero = self._histogram.nonzero, self._histogram.at_zero
        total = int(counts.sum())
        above, below = _clipping(counts[zero:]), _clipping(counts[:zero][::-1])
        low, high = below.size - 1, above.size - 1
        for _ in range(ROUNDS):
            before = low, high
            spans = np.arange(above.size) + low
            high = int(np.argmin(above + _rounding(total, spans, self._steps)))
            spans = np.arange(below.size) + high
            low = int(np.argmin(below + _rounding(total, spans, self._steps)))
            if (low, high) == before:
                break
        return low, high


def _rounding(total: int, spans: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
    """Return the squared error of rounding `total` values, in squared bins, for each span."""
    return total * (spans / steps) ** 2 / 12


def _clipping(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the squared error, in squared bins, of keeping the first 0, 1, ... all bins."""
    place = np.arange(counts.size) + 0.5
    zeroth, first, second = (
        np.append(np.cumsum((counts * place**power)[::-1])[::-1], 0.0) for power in range(3)
    )
    kept = np.arange(counts.size + 1)
    return np.asarray(np.maximum(second - 2 * kept * first + kept**2 * zeroth, 0), np.float64)
