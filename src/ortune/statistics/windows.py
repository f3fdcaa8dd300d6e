"""The vectors that a convolution or a matrix product reads, gathered where they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Windows:
    """Windows of an array [batch, channels, *space], or the rows along its last axis.

    Attributes:
        count: How many there are.
    """

    def __init__(
        self,
        values: NDArray[Any],
        kernel: Sequence[int] = (),
        strides: Sequence[int] = (),
        pads: Sequence[int] = (),
        dilations: Sequence[int] = (),
        auto_pad: str = "NOTSET",
    ) -> None:
        self._kernel = tuple(kernel)
        self._places: tuple[int, ...]
        if not self._kernel:
            self._view = values.reshape(-1, values.shape[-1]) if values.size else values[:0]
            self._places = (len(self._view),) if values.size else (0,)
        else:
            axes = len(self._kernel)
            strides, dilations = strides or (1,) * axes, dilations or (1,) * axes
            reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
            padded = _padded(values, _pads(values.shape[2:], reach, strides, pads, auto_pad))
            fits = values.size and all(
                n >= r for n, r in zip(padded.shape[2:], reach, strict=True)
            )
            self._view = _view(padded, reach, strides, dilations) if fits else values[:0]
            self._places = (len(values), *self._view.shape[2 : 2 + axes]) if fits else (0,)
        self.count = prod(self._places)

    def take(self, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return some of them as rows, float32, shape [chosen, channels * kernel].

        Args:
            chosen: Numbers below `count`, in the order batch, then space.
        """
        if not self._kernel:
            return np.asarray(self._view[chosen], np.float32)
        batch, *space = np.unravel_index(chosen, self._places)
        places: tuple[Any, ...] = (batch, slice(None), *space)
        found = self._view[places]
        return np.asarray(found, np.float32).reshape(len(chosen), -1)


def _view(
    padded: NDArray[Any], reach: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> NDArray[Any]:
    """Return a view [batch, channels, *places, *kernel]; nothing is copied."""
    axes = tuple(range(2, 2 + len(reach)))
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=axes)
    steps = (slice(None, None, s) for s in strides)
    taps = (slice(None, None, d) for d in dilations)
    return view[(slice(None), slice(None), *steps, *taps)]


def _pads(
    space: Sequence[int],
    reach: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    auto_pad: str,
) -> list[tuple[int, int]]:
    """Return begin and end of each spatial axis, by the rules of ONNX Conv."""
    axes = len(reach)
    if auto_pad == "VALID" or (auto_pad == "NOTSET" and not pads):
        return [(0, 0)] * axes
    if auto_pad == "NOTSET":
        return [(pads[i], pads[axes + i]) for i in range(axes)]
    found = []
    for size, wide, stride in zip(space, reach, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + wide - size, 0)
        less = total // 2
        found.append((less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less))
    return found


def _padded(values: NDArray[Any], pads: Sequence[tuple[int, int]]) -> NDArray[Any]:
    return np.pad(values, [(0, 0), (0, 0), *pads]) if any(map(any, pads)) else values
