"""Samples across fixed and freed dimensions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.session import Tensors
from ortune.core.step import Bridge
from ortune.graph.ir.edit import shape_of

Place = tuple[str, int]
"""An input and an axis of it."""


def split_pairs(texts: Sequence[str], kind: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before and behind the last colon of each.

    Raises:
        BadSettings: There is no colon.
    """
    for text in texts:
        before, colon, behind = text.rpartition(":")
        if not colon or not before or not behind:
            raise BadSettings(f"dims: '{text}' names no {kind}", fix=f"write DIMENSION:{kind}")
        yield before.strip(), behind.strip()


def find_dims(model: ir.Model, text: str) -> list[Place]:
    """Return the places that ``NAME`` or ``INPUT.AXIS`` means; a named one all of its name.

    Raises:
        BadSettings: There is no such dimension.
    """
    inputs = {str(v.name): shape_of(v) or () for v in list_required_inputs(model)}
    named = [(n, i) for n, shape in inputs.items() for i, dim in enumerate(shape) if dim == text]
    if named:
        return named
    name, _, axis = text.rpartition(".")
    if name in inputs and axis.isdecimal():
        if int(axis) < len(inputs[name]):
            dim = inputs[name][int(axis)]
            return find_dims(model, dim) if isinstance(dim, str) else [(name, int(axis))]
        raise BadSettings(
            f"dims: input '{name}' has no axis {axis}: its shape is {list(inputs[name])}",
            fix=f"give one from 0 to {len(inputs[name]) - 1}",
        )
    dim_names = dict.fromkeys(d for shape in inputs.values() for d in shape if isinstance(d, str))
    there = f"those there: {', '.join(dim_names)}" if dim_names else "no input has a named one"
    example = next((name for name, shape in inputs.items() if shape), "x")
    raise BadSettings(
        f"dims: no dimension '{text}'", fix=f"{there}; INPUT.AXIS names any: {example}.0"
    )


def list_required_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that a caller must give."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


_TIMES = (2, 3)
"""Batches beside the old one on which a freed batch is compared."""


class CutSamples(Bridge):
    """Samples of other sizes are cut, or repeated, to the sizes that are fixed now."""

    def __init__(self, sizes: Mapping[str, Mapping[int, int]]) -> None:
        self._sizes = sizes

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        sample = dict(old)
        for name, by_axis in self._sizes.items():
            for axis, size in by_axis.items():
                have = sample[name].shape[axis] if name in sample else 0
                if have and have != size:
                    sample[name] = np.take(sample[name], np.arange(size) % have, axis)
        yield sample


class BatchedRows(Bridge):
    """A freed batch: rows together must give what they gave in runs of the old batch."""

    def __init__(self, axes: Mapping[str, int], sizes: int, outputs: Mapping[str, int]) -> None:
        self._axes, self._size, self._outputs = axes, sizes, outputs

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        yield old
        for times in _TIMES:
            yield {name: self._repeat_rows(name, array, times) for name, array in old.items()}

    def runs(self, new: Tensors) -> Sequence[Tensors]:
        """Cut rows into runs of the old batch."""
        lengths = [new[name].shape[axis] for name, axis in self._axes.items()]
        starts = range(0, min(lengths), self._size)
        return [{n: self._slice_rows(n, a, start) for n, a in new.items()} for start in starts]

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        return {
            name: np.concatenate([answer[name] for answer in answers], self._outputs[name])
            if name in self._outputs
            else np.asarray(array)
            for name, array in answers[0].items()
        }

    def _repeat_rows(self, name: str, array: NDArray[Any], times: int) -> NDArray[Any]:
        axis = self._axes.get(name)
        if axis is None:
            return array
        last = array.ndim - 1
        rows = [np.roll(array, k, last) if last != axis else array for k in range(times)]
        return np.concatenate(rows, axis)

    def _slice_rows(self, name: str, array: NDArray[Any], start: int) -> NDArray[Any]:
        axis = self._axes.get(name)
        if axis is None:
            return array
        return np.ascontiguousarray(np.take(array, np.arange(start, start + self._size), axis))


class Larger(Bridge):
    """Freed sizes that are no batch: the old size is compared, twice the size must run."""

    def __init__(self, axes: Mapping[str, Mapping[int, int]]) -> None:
        self._axes = axes

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        yield old
        sample = dict(old)
        for name, by_axis in self._axes.items():
            for axis in by_axis:
                if name in sample:
                    sample[name] = np.concatenate([sample[name]] * 2, axis)
        yield sample

    def runs(self, new: Tensors) -> Sequence[Tensors]:
        """Return the sample where it has the old size; else the answer is not known."""
        fits = all(
            name not in new or new[name].shape[axis] == size
            for name, by_axis in self._axes.items()
            for axis, size in by_axis.items()
        )
        return [new] if fits else []
