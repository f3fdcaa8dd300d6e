"""What outputs lose against others, sample by sample, in a unit that adds up over regions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.metric import Kind, Metric
from ortune.core.trial import Interval
from ortune.statistics import bootstrap

Floats: TypeAlias = NDArray[np.float64]
NOISE = "noise over signal at the outputs, mean over samples"
POOLED = "noise over signal at the outputs, all samples together"
_ERROR = 0.025
"""At each end: 95 % between them."""


@dataclass(frozen=True)
class Loss:
    """How a loss is taken from records.

    Attributes:
        metric: The budget's.
        own: The loss is in the metric's own unit; else it is the noise at the outputs.
    """

    metric: Metric
    own: bool

    @classmethod
    def of(cls, metric: Metric) -> Loss:
        """Return how a metric's loss is taken.

        A mean of records whose bounds are unknown is taken as it is. What is right or wrong or the
        share of something moves in steps, and decibels, angles or largest differences do not add
        up over regions, where the power of small independent errors nearly does.
        """
        return cls(metric, metric.kind() is Kind.MEAN and metric.bounds is None)

    @property
    def unit(self) -> str:
        """In words."""
        if self.own:
            return f"{self.metric} lost, mean over samples"
        return POOLED if self.pooled else NOISE

    @property
    def pooled(self) -> bool:
        """Whether noise is taken over the signal of a mean sample: where a metric looks at each
        sample by itself a quiet one counts as much as the others, else it would outweigh them."""
        return not self.own and self.metric.kind() is not Kind.SHARE

    def each(self, records: Floats, powers: Floats, base: Floats) -> Floats:
        """Return the loss of every sample, shape [samples]; infinite where outputs are broken.

        Args:
            records: Of the metric [samples, k].
            powers: Signal and noise of the outputs [samples, 2].
            base: The metric's records of the float model.
        """
        if self.own:
            sign = 1.0 if self.metric.higher_is_better else -1.0
            found = sign * (base[:, 0] - records[:, 0])
        else:
            signal, noise = powers[:, 0], powers[:, 1]
            if self.pooled:
                known = signal[~np.isnan(signal)]
                signal = np.where(np.isnan(signal), np.nan, known.mean() if len(known) else np.nan)
            with np.errstate(divide="ignore", invalid="ignore"):
                found = np.where(noise == 0, 0.0, noise / signal)
        return np.where(np.isnan(found), math.inf, found)


def interval(losses: Floats) -> Interval:
    """Return the mean loss with the ends of its 95 % interval over samples."""
    value = float(np.mean(losses))
    if not math.isfinite(value):
        return Interval(math.inf, math.inf, math.inf)
    members = [np.array([at], np.int64) for at in range(len(losses))]
    low, high = bootstrap.interval(lambda rows: float(np.mean(losses[rows])), members, _ERROR)
    return Interval(value, min(low, value), max(high, value))
