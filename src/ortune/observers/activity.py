"""What of a tensor ever woke up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.observer import Accumulator, Observer, Range
from ortune.statistics.extent import Extent


@dataclass(frozen=True)
class Activity(Observer):
    """The whole range, and of every channel where their number stays the same.

    Attributes:
        axis: Of the channels; tensors without it, and those where its length changes, are
            answered without channels.
    """

    axis: int = -1

    def start(self) -> Accumulator:
        """Return an accumulator that holds two numbers a channel."""
        return _Activity(self.axis)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of both bounds."""
        inside = -len(shape) <= self.axis < len(shape)
        return 32 * shape[self.axis] if inside else 32


class _Activity:
    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._extent = Extent()
        self._bounds: NDArray[np.float64] | None = None
        self._mixed = False

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._extent.widen(values)
        if not values.size or self._mixed:
            return
        if values.ndim < 2 or not -values.ndim <= self._axis < values.ndim:
            self._mixed, self._bounds = True, None
            return
        others = tuple(i for i in range(values.ndim) if i != self._axis % values.ndim)
        found = np.stack([values.min(axis=others), values.max(axis=others)]).astype(np.float64)
        if self._bounds is None:
            self._bounds = found
        elif self._bounds.shape != found.shape:
            self._mixed, self._bounds = True, None
        else:
            low, high = np.minimum(self._bounds, found)[0], np.maximum(self._bounds, found)[1]
            self._bounds = np.stack([low, high])

    def result(self) -> Range:
        seen = self._extent.range
        bounds = np.zeros((2, 0)) if self._bounds is None else self._bounds
        return Range(seen.low, seen.high, tuple((float(a), float(b)) for a, b in bounds.T))
