"""The vectors that a convolution or a matrix product reads, gathered where they are wanted."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Windows:
    """Windows of an array [batch, channels, *space], or the rows along its last axis."""

    def __init__(
        self,
        values: NDArray[Any],
        kernel: Sequence[int] = (),
        strides: Sequence[int] = (),
        pads: Sequence[int] = (),
        dilations: Sequence[int] = (),
        auto_pad: str = "NOTSET",
    ) -> None:
        self._view = values[:0]
        self._places: tuple[int, ...] = (0,)
        if kernel:
            view = slide_windows(values, kernel, strides, pads, dilations, auto_pad)
            if view is not None:
                self._view = view
                self._places = (len(values), *view.shape[2 : 2 + len(kernel)])
        elif values.size:
            self._view = values.reshape(-1, values.shape[-1])
            self._places = (len(self._view),)
        self.count = prod(self._places)

    def gather_rows(self, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return some of them as rows, float32, shape [chosen, channels * kernel].

        Args:
            chosen: Numbers below `count`, in the order batch, then space.
        """
        batch, *space = np.unravel_index(chosen, self._places)
        places: tuple[Any, ...] = (batch, slice(None), *space)
        return np.asarray(self._view[places], np.float32).reshape(len(chosen), -1)


def slide_windows(
    values: NDArray[Any],
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    *,
    fill: int = 0,
) -> NDArray[Any] | None:
    """Return a view [batch, channels, *places, *kernel] of what ONNX Conv reads.

    Args:
        values: Shape [batch, channels, *space].
        strides: As the convolution's attribute; empty for 1s, and so for `dilations`.
        pads: As the convolution's attribute: all begins, then all ends; empty for 0s.
        auto_pad: As the convolution's attribute; SAME and VALID replace `pads`.

    Returns:
        None where no window fits.
    """
    if not values.size:
        return None
    axes = len(kernel)
    strides, dilations = strides or (1,) * axes, dilations or (1,) * axes
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    ends = compute_padding(values.shape[2:], reach, strides, pads, auto_pad)
    if any(map(any, ends)):
        values = np.pad(values, [(0, 0), (0, 0), *ends], constant_values=fill)
    if any(n < r for n, r in zip(values.shape[2:], reach, strict=True)):
        return None
    view = np.lib.stride_tricks.sliding_window_view(values, reach, axis=tuple(range(2, 2 + axes)))
    steps = (slice(None, None, step) for step in (*strides, *dilations))
    return view[(slice(None), slice(None), *steps)]


def compute_padding(
    space: Sequence[int],
    reach: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    auto_pad: str,
) -> list[tuple[int, int]]:
    """Return begin and end of each axis by the rules of ONNX Conv; `reach` includes dilations."""
    axes = len(reach)
    if auto_pad == "VALID" or (auto_pad == "NOTSET" and not pads):
        return [(0, 0)] * axes
    if auto_pad == "NOTSET":
        return [(pads[i], pads[axes + i]) for i in range(axes)]
    amounts = []
    for size, wide, stride in zip(space, reach, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + wide - size, 0)
        less = total // 2
        amounts.append((less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less))
    return amounts
