"""The range that holds all but the rarest values."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.observer import Accumulator, Range
from ortune.core.plugins.bounds import Bounds
from ortune.measurement.statistics.histogram import (
    Clipping,
    Histogram,
    fold_counts,
    make_symmetric,
)

BINS = 2048


@dataclass(frozen=True)
class Percentile(Clipping):
    """Clips the tails: one pass finds the extent, a second one counts values in 2048 equal bins.

    The result lies within one bin of the exact percentile of all values that are counted: all, or
    of a run with more than half a million at least a quarter of a million, evenly spread.

    Attributes:
        p: Share of the values to keep, in percent; half of the rest is clipped on either side.
            Of a range around zero it is the share of the magnitudes.
    """

    p: Annotated[float, Bounds(high=100)] = 99.99

    def __post_init__(self) -> None:
        if not 0 < self.p <= 100:
            raise BadSettings(f"percentile(p={self.p}) keeps nothing", fix="use 0 < p <= 100")

    def start(self) -> Accumulator:
        around_zero = self.symmetric or self.by_sign
        return Histogram(BINS, self.choose_range, around_zero=around_zero)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return 8 * BINS

    def clip_range(self, histogram: Histogram, *, centred: bool) -> Range:
        seen, share = histogram.range, self.p / 100
        if not histogram.counts.any():
            return make_symmetric(seen) if centred else seen
        if centred:
            counts = fold_counts(histogram.counts, histogram.at_zero)
            edges = np.arange(counts.size + 1) * histogram.width
            top = min(make_symmetric(seen).high, _interpolate_edge(counts, edges, share))
            return Range(0.0 - top, top)
        tail = (1 - share) / 2
        edges = histogram.start + np.arange(histogram.counts.size + 1) * histogram.width
        edges[-1] = seen.high
        edges = np.clip(edges, seen.low, seen.high)
        return Range(
            _interpolate_edge(histogram.counts, edges, tail),
            _interpolate_edge(histogram.counts, edges, 1 - tail),
        )


def _interpolate_edge(counts: NDArray[np.int64], edges: NDArray[Any], share: float) -> float:
    below = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    return float(np.interp(share, below, edges))
