"""The extent of the values that are numbers."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Observer, Range
from ortune.core.plugins.bounds import Bounds
from ortune.measurement.statistics.histogram import Extent


@dataclass(frozen=True)
class Finite(Observer):
    """Smallest to largest value, without infinities, NaN and what stands for them.

    Attributes:
        mask: Values of this magnitude stand for infinity.
    """

    mask: Annotated[float, Bounds(high=math.inf)] = 1e30

    def start(self) -> Accumulator:
        return _Finite(self.mask)


class _Finite:
    def __init__(self, mask: float) -> None:
        self._mask = mask
        self._extent = Extent()

    def update(self, turn: int, values: NDArray[Any]) -> None:
        if not values.size:
            return
        # NaN survives min and max: only a tensor that holds a mask is copied.
        low, high = float(values.min()), float(values.max())
        if not (-self._mask < low and high < self._mask):
            wide = values.astype(np.float64).ravel()
            values = wide[np.abs(wide) < self._mask]
        self._extent.widen(values)

    def result(self) -> Range:
        return self._extent.range
