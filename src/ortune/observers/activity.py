"""The range of every channel, for finding those that the samples leave inactive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Observer, Range
from ortune.statistics.extent import ChannelExtents, Extent


@dataclass(frozen=True)
class Activity(Observer):
    """The whole range, and of every channel where their number stays the same.

    Attributes:
        axis: Of the channels; tensors without it, and those where its length changes, are
            answered without channels.
    """

    axis: int = -1

    def start(self) -> Accumulator:
        return _Activity(self.axis)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        inside = -len(shape) <= self.axis < len(shape)
        return 32 * shape[self.axis] if inside else 32


class _Activity:
    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._extent = Extent()
        self._channels: ChannelExtents | None = ChannelExtents(axis)

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._extent.widen(values)
        if values.size and self._channels is not None:
            fits = values.ndim >= 2 and -values.ndim <= self._axis < values.ndim
            if not fits or not self._channels.widen(values):
                self._channels = None

    def result(self) -> Range:
        seen = self._extent.range
        return Range(seen.low, seen.high, () if self._channels is None else self._channels.pairs)
