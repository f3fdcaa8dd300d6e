"""The whole range that was seen, of every channel apart."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.observer import Accumulator, Observer
from ortune.measurement.statistics.histogram import ChannelExtents


@dataclass(frozen=True)
class Channels(Observer):
    """Smallest to largest value at each index of the last axis, and over all of them."""

    def start(self) -> Accumulator:
        return _Channels(axis=-1)


class _Channels(ChannelExtents):
    def update(self, turn: int, values: NDArray[Any]) -> None:
        self.extent.widen(values)
        if values.size and values.ndim and not self.widen(values):
            raise BadData(
                f"the last axis has length {values.shape[-1]} after {self.bounds.shape[1]}",
                fix="smooth only layers whose input has a fixed last axis",
            )
