"""Extents of values, and counts in equal bins: one pass finds the extent, one counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData, BadSettings
from ortune.core.observer import Accumulator, Observer, Range


class Extent:
    """Running minimum and maximum; two numbers, however much is seen."""

    def __init__(self) -> None:
        self._low = np.inf
        self._high = -np.inf

    def widen(self, values: NDArray[Any]) -> None:
        """Take values of any shape and real dtype; empty arrays change nothing.

        Raises:
            BadData: A value is NaN or infinite.
        """
        if not values.size:
            return
        # NaN survives min and max, infinity is one of them: no boolean copy of the tensor.
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            wide = values.astype(np.float32)
            nan, infinite = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
            kinds = [f"{nan} NaN"] * bool(nan) + [f"{infinite} infinite"] * bool(infinite)
            shape = "x".join(map(str, values.shape)) or "scalar"
            raise BadData(
                f"{' and '.join(kinds)} of {wording.format_count(values.size, 'value')} on "
                f"calibration data, shape {shape}",
                fix="check the samples' scaling and the model's own NaNs",
            )
        self._low, self._high = min(self._low, low), max(self._high, high)

    @property
    def range(self) -> Range:
        """The extent; 0..0 when no value was ever seen, as for a tensor that is always zero."""
        return Range(self._low, self._high) if self._low <= self._high else Range(0.0, 0.0)


class ChannelExtents:
    """Running minimum and maximum of all, and at each index of one axis; two numbers a channel.

    Attributes:
        bounds: float64, shape [2, channels].
    """

    def __init__(self, axis: int) -> None:
        self.extent, self.axis = Extent(), axis
        self.bounds = np.zeros((2, 0))

    def widen(self, values: NDArray[Any]) -> bool:
        """Take values that have the axis and are not empty; False if its length has changed."""
        other_axes = tuple(i for i in range(values.ndim) if i != self.axis % values.ndim)
        low, high = values.min(axis=other_axes), values.max(axis=other_axes)
        if not self.bounds.size:
            self.bounds = np.stack([low, high]).astype(np.float64)
        elif self.bounds.shape[1] != len(low):
            return False
        else:
            bottom, top = self.bounds
            self.bounds = np.stack([np.minimum(bottom, low), np.maximum(top, high)])
        return True

    def result(self) -> Range:
        """Return the extent with that of each channel."""
        seen = self.extent.range
        channels = tuple((float(low), float(high)) for low, high in self.bounds.T)
        return Range(seen.low, seen.high, channels)


def make_symmetric(seen: Range) -> Range:
    """Return the smallest range around zero that holds another."""
    top = max(0.0 - seen.low, seen.high)
    return Range(0.0 - top, top)


BLOCK = 1 << 16  # values counted at a time: what is needed beside them stays in the cache
MOST = 1 << 19
"""Values of one run that are counted: of more, one in several stands for its neighbours. Counting
costs more than running a network does; the extent is that of all values in any case."""

NARROW, WIDE = 1e-30, 1e37
"""Between these widths float32 tells the bins apart; beyond, float64 does."""


class Histogram:
    """The state of an observer of two passes; its size is that of its bins.

    Attributes:
        counts: Values in each bin, as far as they were counted; all 0 when the extent is a single
            value.
        zeros: Values that are exactly 0, in their bin too.
        start: Lower edge of the first bin.
        width: Of every bin; 0 when the extent is a single value.
    """

    def __init__(
        self, bins: int, choose: Callable[[Histogram], Range], *, around_zero: bool
    ) -> None:
        """Begin with `bins` empty bins, from 2 on, that end where the values do.

        Where `around_zero`, zero is an edge, inside or at an end; one bin is added for it. The
        observer's `choose` reads the range off the counts.
        """
        self._choose = choose
        self.counts = np.zeros(bins + around_zero, np.int64)
        self.zeros = 0
        self.start, self.width = 0.0, 0.0
        self._bins, self._around_zero = bins, around_zero
        self._extent = Extent()

    @property
    def range(self) -> Range:
        """The extent."""
        return self._extent.range

    @property
    def at_zero(self) -> int:
        """The bin that begins at zero, where zero is an edge."""
        return round(-self.start / self.width) if self.width else 0

    @property
    def nonzero(self) -> NDArray[np.int64]:
        """Counts without the values that are exactly 0, where zero is an edge.

        They end with the last bin that has any, or at zero.
        """
        counts = self.counts.copy()
        counts[self.at_zero] -= min(self.zeros, int(counts[self.at_zero]))
        return counts[: max(self.at_zero, int(counts.size - np.argmax(counts[::-1] > 0)))]

    def update(self, turn: int, values: NDArray[Any]) -> None:
        """Take the values of one run: in pass 0 their extent, in pass 1 their counts."""
        if turn == 0:
            self._extent.widen(values)
            return
        seen, bins = self.range, self._bins
        if not self.width and seen.low < seen.high and self._around_zero:
            low, high = min(seen.low, 0.0), max(seen.high, 0.0)
            self.width = high / (bins - 1) - low / (bins - 1)
            self.start = -ceil(-low / self.width) * self.width
        elif not self.width and seen.low < seen.high:
            self.width, self.start = seen.high / bins - seen.low / bins, seen.low
        if not values.size or not self.width:
            return
        span = self.width * self.counts.size
        kind: Any = np.float32 if values.itemsize <= 4 and NARROW < span < WIDE else np.float64
        start, per_bin = kind(self.start), kind(1 / self.width)
        stride = ceil(values.size / MOST)  # the first of so many neighbours is counted
        while gcd(stride, values.size) > 1:  # so that rows and channels are met at all places
            stride += 1
        counted = values.ravel()[::stride]
        for at in range(0, counted.size, BLOCK):
            block = counted[at : at + BLOCK].astype(kind)
            self.zeros += stride * (block.size - int(np.count_nonzero(block)))
            places = ((block - start) * per_bin).astype(np.intp)
            np.clip(places, 0, self.counts.size - 1, out=places)
            self.counts += stride * np.bincount(places, minlength=self.counts.size)

    def result(self) -> Range:
        return self._choose(self)


@dataclass(frozen=True, kw_only=True)
class Clipping(Observer):
    """An observer that clips by a histogram of the values.

    Attributes:
        symmetric: Keep a range around zero, the best for a grid around zero.
        by_sign: The same, unless the best range holds nothing negative.
    """

    passes: ClassVar[int] = 2

    symmetric: bool = False
    by_sign: bool = False

    def fit_centred_grid(self, *, by_sign: bool) -> Self:
        return replace(self, by_sign=True) if by_sign else replace(self, symmetric=True)

    def choose_range(self, histogram: Histogram) -> Range:
        """Return the range to keep of all values."""
        if self.symmetric:
            return self.clip_range(histogram, centred=True)
        free = self.clip_range(histogram, centred=False)
        centred = self.by_sign and free.low < 0
        return self.clip_range(histogram, centred=True) if centred else free

    @abstractmethod
    def clip_range(self, histogram: Histogram, *, centred: bool) -> Range:
        """Return the best range, or the best around zero where `centred`."""


@dataclass(frozen=True)
class Binned(Clipping):
    """An observer that clips by a histogram of the values, for a grid of some bits.

    Attributes:
        bits: Of the grid that will cover the range.
        bins: Of the histogram; the ends of a range are its edges.
    """

    bits: int = 8
    bins: int = 2048

    def __post_init__(self) -> None:
        """Refuse a histogram of fewer than two bins a step of the grid that it shall place."""
        bits, bins = self.bits, self.bins
        if not 2 <= bits <= 16 or bins < 2 << bits:
            least = 2 << max(2, min(bits, 16))
            raise BadSettings(
                f"{self.name()}(bins={bins}, bits={bits}): too few bins for the grid",
                fix=f"use bits from 2 to 16 and at least {wording.format_count(least, 'bin')}",
            )

    def start(self) -> Accumulator:
        return Histogram(self.bins, self.choose_range, around_zero=True)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return 8 * self.bins

    @abstractmethod
    def select_bins(self, histogram: Histogram, *, centred: bool) -> tuple[int, int]:
        """Return how many bins to keep below and above zero; two equal ones where `centred`."""

    def clip_range(self, histogram: Histogram, *, centred: bool) -> Range:
        outer = make_symmetric(histogram.range) if centred else histogram.range
        if not histogram.nonzero.any():
            return outer
        below, above = self.select_bins(histogram, centred=centred)
        low, high = below * histogram.width, above * histogram.width
        return Range(max(outer.low, 0.0 - low), min(outer.high, high))


def fold_counts(counts: NDArray[np.int64], zero: int) -> NDArray[np.int64]:
    """Return counts of magnitudes, from those of bins of which number `zero` begins at zero."""
    above, below = counts[zero:], counts[:zero][::-1]
    both = np.zeros(max(above.size, below.size), np.int64)
    both[: above.size] += above
    both[: below.size] += below
    return both
