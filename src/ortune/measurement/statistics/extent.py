"""The smallest and largest value seen so far: the part that all observers share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData
from ortune.core.observer import Range


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
