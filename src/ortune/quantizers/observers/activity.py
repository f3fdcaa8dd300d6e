"""The range of every channel, for finding those that the samples leave inactive."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Observer
from ortune.core.plugins.bounds import ANY
from ortune.measurement.statistics.histogram import ChannelExtents


@dataclass(frozen=True)
class Activity(Observer):
    """The whole range, and of every channel where their number stays the same.

    Attributes:
        axis: Of the channels; tensors without it, and those where its length changes, are
            answered without channels.
    """

    axis: Annotated[int, ANY] = -1

    def start(self) -> Accumulator:
        return _Activity(self.axis)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        inside = -len(shape) <= self.axis < len(shape)
        return 32 * shape[self.axis] if inside else 32


class _Activity(ChannelExtents):
    _fits = True

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self.extent.widen(values)
        if values.size and self._fits:
            has_axis = values.ndim >= 2 and -values.ndim <= self.axis < values.ndim
            self._fits = has_axis and self.widen(values)
            if not self._fits:
                self.bounds = np.zeros((2, 0))
