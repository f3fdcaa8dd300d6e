"""The whole range that was seen, or the average of those that single runs had."""

from dataclasses import dataclass
from typing import Annotated, Any

from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.observer import Accumulator, Observer, Range
from ortune.core.plugins.bounds import SHARE
from ortune.measurement.statistics.histogram import Extent, make_symmetric


@dataclass(frozen=True)
class MinMax(Observer):
    """Smallest to largest value: nothing is clipped, one outlier widens every step of the grid.

    Attributes:
        average: Weight of the newest run in a moving average of the runs' own extents, such as
            0.01: ``low += average * (low of the run - low)``, from the first run on. What only a
            few runs reach is then clipped. 0 takes the extent of all values; 1 that of the last
            run.
        symmetric: Widen to a range around zero.
    """

    average: Annotated[float, SHARE] = 0.0
    symmetric: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.average <= 1:
            raise BadSettings(
                f"min-max(average={self.average}) is not a weight", fix="use 0 <= average <= 1"
            )

    def start(self) -> Accumulator:
        return _MinMax(self.average, self.symmetric)


class _MinMax:
    def __init__(self, average: float, symmetric: bool) -> None:
        self._average, self._symmetric = average, symmetric
        self._extent = Extent()
        self._smooth: Range | None = None

    def update(self, turn: int, values: NDArray[Any]) -> None:
        if not self._average or not values.size:
            self._extent.widen(values)
            return
        run = Extent()
        run.widen(values)
        new, old = run.range, self._smooth or run.range
        self._smooth = Range(
            old.low + self._average * (new.low - old.low),
            old.high + self._average * (new.high - old.high),
        )

    def result(self) -> Range:
        seen = self._smooth or self._extent.range
        return make_symmetric(seen) if self._symmetric else seen
