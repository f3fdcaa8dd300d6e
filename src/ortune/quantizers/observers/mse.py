"""The range whose grid has the smallest expected error: some clipping for finer steps."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ortune.core.plugins.bounds import Bounds
from ortune.measurement.statistics.histogram import Binned, Histogram, fold_counts

ROUNDS = 50


@dataclass(frozen=True)
class Mse(Binned):
    """Balances rounding and clipping: the sum of both squared errors over all values is smallest.

    Rounding costs ``step^2 / 12`` a value (values spread evenly over a step), but nothing at
    exactly zero, which every grid holds; clipping costs what the values' histogram says. Both are
    convex in the two ends of the range, so turning from one end to the other finds the optimum,
    within one bin.
    """

    bins: Annotated[int, Bounds(2, 2**20)] = 4096

    def select_bins(self, histogram: Histogram, *, centred: bool) -> tuple[int, int]:
        counts, zero, steps = histogram.nonzero, histogram.at_zero, 2**self.bits - 1
        total = int(counts.sum())
        if centred:
            cut = _compute_clipping_error(fold_counts(counts, zero))
            spans = 2 * np.arange(cut.size)
            bins = int(np.argmin(cut + _compute_rounding_error(total, spans, steps - 1)))
            return bins, bins
        above = _compute_clipping_error(counts[zero:])
        below = _compute_clipping_error(counts[:zero][::-1])
        low, high = below.size - 1, above.size - 1
        for _ in range(ROUNDS):
            before = low, high
            spans = np.arange(above.size) + low
            high = int(np.argmin(above + _compute_rounding_error(total, spans, steps)))
            spans = np.arange(below.size) + high
            low = int(np.argmin(below + _compute_rounding_error(total, spans, steps)))
            if (low, high) == before:
                break
        return low, high


def _compute_rounding_error(
    total: int, spans: NDArray[np.int64], steps: int
) -> NDArray[np.float64]:
    """Return the squared error of rounding `total` values, in squared bins, for each span."""
    return total * (spans / steps) ** 2 / 12


def _compute_clipping_error(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the squared error, in squared bins, of keeping the first 0, 1, ... all bins."""
    place = np.arange(counts.size) + 0.5
    zeroth, first, second = (
        np.append(np.cumsum((counts * place**power)[::-1])[::-1], 0.0) for power in range(3)
    )
    kept = np.arange(counts.size + 1)
    return np.asarray(np.maximum(second - 2 * kept * first + kept**2 * zeroth, 0), np.float64)
