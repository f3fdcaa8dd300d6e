"""The whole range that was seen, of every channel apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.observer import Accumulator, Observer, Range
from ortune.statistics.extent import ChannelExtents, Extent


@dataclass(frozen=True)
class Channels(Observer):
    """Smallest to largest value at each index of the last axis, and over all of them."""

    def start(self) -> Accumulator:
        return _Channels()


class _Channels:
    def __init__(self) -> None:
        self._extent = Extent()
        self._channels = ChannelExtents(axis=-1)

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._extent.widen(values)
        if values.size and values.ndim and not self._channels.widen(values):
            known = self._channels.bounds.shape[1]
            raise BadData(
                f"the last axis has {values.shape[-1]} channels after {known}",
                fix="smooth only layers whose input has a fixed last axis",
            )

    def result(self) -> Range:
        seen = self._extent.range
        return Range(seen.low, seen.high, self._channels.pairs)
