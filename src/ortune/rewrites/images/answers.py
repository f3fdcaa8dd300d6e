"""Answers across the folding of postprocessing: what the new outputs must be, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.session import Tensors
from ortune.core.step import Bridge

Arrays: TypeAlias = dict[str, NDArray[Any]]


class FoldedAnswers(Bridge):
    """Samples stay; one output of the old model becomes what the new one gives instead."""

    def __init__(self, name: str, turned: Callable[[NDArray[Any]], Arrays]) -> None:
        self._name, self._turned = name, turned

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        """Turn the one output."""
        found: Arrays = {}
        for name, array in answers[0].items():
            found |= self._turned(array) if name == self._name else {name: np.asarray(array)}
        return found


def softmax(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return exp(x) over its sum along an axis."""
    powers = np.exp(array.astype(np.float64) - array.max(axis, keepdims=True))
    found: NDArray[Any] = (powers / powers.sum(axis, keepdims=True)).astype(array.dtype)
    return found


def top(array: NDArray[Any], k: int, axis: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the k largest, largest first and of equal ones the first first, and their places."""
    order = np.argsort(-array.astype(np.float64), axis=axis, kind="stable")
    places = np.take(order, np.arange(k), axis=axis).astype(np.int64)
    return np.take_along_axis(array, places, axis), places


def picture(
    array: NDArray[Any], scale: float, offset: float, order: Sequence[int] | None
) -> NDArray[np.uint8]:
    """Return bytes of value * scale + offset, rounded to even and clipped, transposed last."""
    values = array.astype(np.float32) * np.float32(scale) + np.float32(offset)
    bytes_ = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return bytes_ if order is None else np.ascontiguousarray(bytes_.transpose(order))
