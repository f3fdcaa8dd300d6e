"""Samples across fixed and freed dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.session import Tensors
from ortune.core.step import Bridge

_TIMES = (2, 3)
"""Batches beside the old one on which a freed batch is compared."""


class CutSamples(Bridge):
    """Samples of other sizes are cut, or repeated, to the sizes that are fixed now."""

    def __init__(self, sizes: Mapping[str, Mapping[int, int]]) -> None:
        self._sizes = sizes

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        """Yield one sample of the fixed sizes."""
        found = dict(old)
        for name, by_axis in self._sizes.items():
            for axis, size in by_axis.items():
                have = found[name].shape[axis] if name in found else 0
                if have and have != size:
                    found[name] = np.take(found[name], np.arange(size) % have, axis)
        yield found


class BatchedRows(Bridge):
    """A freed batch: rows together must give what they gave in runs of the old batch."""

    def __init__(self, axes: Mapping[str, int], sizes: int, outputs: Mapping[str, int]) -> None:
        self._axes, self._size, self._outputs = axes, sizes, outputs

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        """Yield the sample, then twice and three times as many rows, all different."""
        yield old
        for times in _TIMES:
            yield {name: self._more(name, array, times) for name, array in old.items()}

    def runs(self, new: Tensors) -> Sequence[Tensors]:
        """Cut rows into runs of the old batch."""
        lengths = [new[name].shape[axis] for name, axis in self._axes.items()]
        starts = range(0, min(lengths), self._size)
        return [
            {name: self._part(name, array, start) for name, array in new.items()}
            for start in starts
        ]

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        """Put the rows of the answers together."""
        return {
            name: np.concatenate([one[name] for one in answers], self._outputs[name])
            if name in self._outputs
            else np.asarray(array)
            for name, array in answers[0].items()
        }

    def _more(self, name: str, array: NDArray[Any], times: int) -> NDArray[Any]:
        axis = self._axes.get(name)
        if axis is None:
            return array
        last = array.ndim - 1
        rows = [np.roll(array, k, last) if last != axis else array for k in range(times)]
        return np.concatenate(rows, axis)

    def _part(self, name: str, array: NDArray[Any], start: int) -> NDArray[Any]:
        axis = self._axes.get(name)
        if axis is None:
            return array
        return np.ascontiguousarray(np.take(array, np.arange(start, start + self._size), axis))


class Larger(Bridge):
    """Freed sizes that are no batch: the old size is compared, twice the size must run."""

    def __init__(self, axes: Mapping[str, Mapping[int, int]]) -> None:
        self._axes = axes

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        """Yield the sample, and one of twice the size."""
        yield old
        found = dict(old)
        for name, by_axis in self._axes.items():
            for axis in by_axis:
                if name in found:
                    found[name] = np.concatenate([found[name]] * 2, axis)
        yield found

    def runs(self, new: Tensors) -> Sequence[Tensors]:
        """Return the sample where it has the old size; else the answer is not known."""
        fits = all(
            name not in new or new[name].shape[axis] == size
            for name, by_axis in self._axes.items()
            for axis, size in by_axis.items()
        )
        return [new] if fits else []
