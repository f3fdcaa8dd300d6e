"""The smallest and largest value seen so far: the part that all observers share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
            raise BadData(
                _broken(values), fix="check the samples' scaling and the model's own NaNs"
            )
        self._low, self._high = min(self._low, low), max(self._high, high)

    @property
    def range(self) -> Range:
        """The extent; 0..0 when no value was ever seen, as for a tensor that is always zero."""
        return Range(self._low, self._high) if self._low <= self._high else Range(0.0, 0.0)


def balanced(seen: Range) -> Range:
    """Return the smallest range around zero that holds another."""
    top = max(0.0 - seen.low, seen.high)
    return Range(0.0 - top, top)


def _broken(values: NDArray[Any]) -> str:
    wide = values.astype(np.float32)
    nan, infinite = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    kinds = [f"{nan} NaN"] * bool(nan) + [f"{infinite} infinite"] * bool(infinite)
    shape = "x".join(map(str, values.shape)) or "scalar"
    return f"{' and '.join(kinds)} of {values.size} values on calibration data, shape {shape}"
