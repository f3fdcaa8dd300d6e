"""The whole range that was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Observer, Range
from ortune.observers._extent import Extent


@dataclass(frozen=True)
class MinMax(Observer):
    """Smallest to largest value: nothing is clipped, one outlier widens every step of the grid."""

    def start(self) -> Accumulator:
        """Return an accumulator that holds two numbers."""
        return _MinMax()


class _MinMax:
    def __init__(self) -> None:
        self._extent = Extent()

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._extent.widen(values)

    def result(self) -> Range:
        return self._extent.range
