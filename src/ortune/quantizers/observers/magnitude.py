"""How small and how large the magnitudes become."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Observer, Range


@dataclass(frozen=True)
class Magnitude(Observer):
    """Smallest magnitude that is not zero, to the largest; infinities and NaN count not."""

    covers: ClassVar[bool] = False

    def start(self) -> Accumulator:
        return _Magnitude()


class _Magnitude:
    def __init__(self) -> None:
        self._low, self._high = np.inf, 0.0

    def update(self, turn: int, values: NDArray[Any]) -> None:
        size = np.abs(values)
        size = size[(size > 0) & np.isfinite(size)]
        if size.size:
            self._low = min(self._low, float(size.min()))
            self._high = max(self._high, float(size.max()))

    def result(self) -> Range:
        return Range(min(self._low, self._high), self._high)
