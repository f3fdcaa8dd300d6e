"""The whole range that was seen, of every channel apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.observer import Accumulator, Observer, Range
from ortune.statistics.extent import Extent


@dataclass(frozen=True)
class Channels(Observer):
    """Smallest to largest value at each index of the last axis, and over all of them."""

    def start(self) -> Accumulator:
        """Return an accumulator that holds two numbers a channel."""
        return _Channels()


class _Channels:
    def __init__(self) -> None:
        self._extent = Extent()
        self._bounds: NDArray[np.float64] | None = None

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._extent.widen(values)
        if not values.size or not values.ndim:
            return
        rows = values.reshape(-1, values.shape[-1])
        found = np.stack([rows.min(axis=0), rows.max(axis=0)]).astype(np.float64)
        if self._bounds is None:
            self._bounds = found
        elif self._bounds.shape != found.shape:
            raise BadData(
                f"the last axis has {found.shape[1]} channels after {self._bounds.shape[1]}",
                fix="smooth only layers whose input has a fixed last axis",
            )
        else:
            low, high = np.minimum(self._bounds, found)[0], np.maximum(self._bounds, found)[1]
            self._bounds = np.stack([low, high])

    def result(self) -> Range:
        bounds = np.zeros((2, 0)) if self._bounds is None else self._bounds
        seen = self._extent.range
        return Range(seen.low, seen.high, tuple((float(a), float(b)) for a, b in bounds.T))
