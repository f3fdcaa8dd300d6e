"""The range whose grid keeps the distribution of the values: the least KL divergence."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ortune.measurement.statistics.histogram import Binned, Histogram, fold_counts

CANDIDATES = 64
"""Thresholds that are compared, evenly spread; then all those next to the best."""

ALMOST_NOTHING = 1e-4
"""Stands, in counts, where the grid has no value and the distribution has some (onnxruntime)."""


@dataclass(frozen=True)
class Entropy(Binned):
    """Clips at the threshold that loses least information, after TensorRT (Migacz, 2017).

    A threshold clips both sides, each not beyond its own end. For each one the histogram inside,
    clipped values at its ends, is compared with itself merged into as many levels as the grid has:
    the smallest Kullback-Leibler divergence wins. Values that are exactly zero, which every grid
    holds, are left out: behind a Relu they would decide everything.
    """

    def fit_centred_grid(self, *, by_sign: bool) -> Self:
        """Return it as it is: both sides have one threshold, and half the levels clip too much.

        With ``symmetric`` SiLU's and hard-swish's outputs lose 2 to 4 dB.
        """
        return self

    def select_bins(self, histogram: Histogram, *, centred: bool) -> tuple[int, int]:
        counts, zero, levels = histogram.nonzero, histogram.at_zero, 2**self.bits
        if centred:
            counts, zero, levels = fold_counts(counts, zero), 0, levels // 2
        # Keep as many bins on either side of zero, and never fewer than the grid has levels.
        widest = max(zero, counts.size - zero)
        kept = np.arange(widest + 1)
        enough = np.minimum(kept, zero) + np.minimum(kept, counts.size - zero) >= levels
        first = int(np.argmax(enough)) if enough.any() else widest

        def best(candidates: NDArray[np.int64]) -> int:
            divergences = [
                compute_divergence(counts, max(zero - k, 0), zero + k, levels)
                for k in candidates.tolist()
            ]
            return int(candidates[int(np.argmin(divergences))])

        spread = np.unique(np.linspace(first, widest, CANDIDATES).astype(np.int64))
        middle, apart = best(spread), (widest - first) // CANDIDATES
        bins = best(np.arange(max(first, middle - apart), min(widest, middle + apart) + 1))
        return bins, bins


def compute_divergence(counts: NDArray[np.int64], start: int, end: int, levels: int) -> float:
    """Return the Kullback-Leibler divergence, in nats, of keeping bins `start` to `end`.

    It is the generalized one, ``sum(p log(p / q) - p + q)``: the grid's distribution lacks what
    is clipped. TensorRT scales it up instead, and finds that keeping a single full bin is perfect.
    A bin across the border of two levels belongs to both in part: whole bins would make the
    result depend on how the number of bins divides.
    """
    inside = counts[start:end].astype(np.float64)
    p = inside.copy()
    p[0] += counts[:start].sum()
    p[-1] += counts[end:].sum()
    filled = p > 0
    bins = np.arange(inside.size + 1)
    borders = np.linspace(0, inside.size, levels + 1)
    kept = np.diff(np.interp(borders, bins, np.append(0, np.cumsum(inside))))
    spread = np.diff(np.interp(borders, bins, np.append(0, np.cumsum(filled))))
    height = np.divide(kept, spread, out=np.zeros(levels), where=spread > 0)
    area = np.append(0, np.cumsum(height * np.diff(borders)))
    q = np.maximum(np.diff(np.interp(bins, borders, area)), ALMOST_NOTHING)[filled]
    total = p.sum()
    p, q = p[filled] / total, q / total
    return float(np.sum(p * np.log(p / q) - p + q))
