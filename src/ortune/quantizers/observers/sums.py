"""What a reduction adds up on its way."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Observer, Range
from ortune.core.plugins.bounds import ANY


@dataclass(frozen=True)
class Sums(Observer):
    """Zero to the largest sum of ``|x|**power``: no partial sum in any order is larger.

    Attributes:
        axes: Summed over; counted from the end where negative, all of them when empty.
        power: 1 for sums and means, 2 for squares.
    """

    covers: ClassVar[bool] = False

    axes: Annotated[tuple[int, ...], ANY] = ()
    power: int = 1

    def start(self) -> Accumulator:
        return _Sums(self.axes or None, self.power)


class _Sums:
    def __init__(self, axes: tuple[int, ...] | None, power: int) -> None:
        self._axes, self._power = axes, power
        self._high = 0.0

    def update(self, turn: int, values: NDArray[Any]) -> None:
        if not values.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(values) if self._power == 1 else np.square(values, dtype=np.float32)
            total = np.atleast_1d(size.sum(axis=self._axes, dtype=np.float64))
        finite_totals = total[np.isfinite(total)]
        self._high = max(self._high, float(finite_totals.max(initial=0.0)))

    def result(self) -> Range:
        return Range(0.0, self._high)
