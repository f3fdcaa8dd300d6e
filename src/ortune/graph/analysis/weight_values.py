"""Counts of a model's weight values: denormal, infinite, beyond float16."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir.edit import list_named_weights

HALF_MAX = 65504.0
_MASK = 1e30
_HALF_SMALL = 2.0**-14
_CHUNK = 1 << 20
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_KINDS: dict[np.dtype[Any], tuple[type[np.unsignedinteger], int]] = {
    np.dtype(np.float32): (np.uint32, 8),
    np.dtype(np.float16): (np.uint16, 5),
}


@dataclass
class WeightValues:
    """How many elements of a weight are of which kind."""

    name: str
    elements: int = 0  # looked at
    denormal: int = 0  # so small that many CPUs compute slowly with them; not counted in float64
    nan: int = 0
    infinite: int = 0
    over: int = 0  # beyond the largest float16; not counted in float16, as the next two
    masks: int = 0  # from 1e30 on, which stand for infinity
    small: int = 0  # not 0, and below the smallest normal float16


def weight_values(model: ir.Model, at_most: int | None = None) -> Iterator[WeightValues]:
    """Yield counts of each float weight, in chunks: beyond `at_most` elements an even part."""
    weights = [(name, t) for name, t in list_named_weights(model) if t.dtype in _FLOATS]
    total = sum(tensor.size for _, tensor in weights)
    step = max(1, -(-total // at_most)) if at_most else 1
    for name, tensor in weights:
        counts = WeightValues(name)
        flat = np.asarray(tensor.numpy()).reshape(-1)
        for start in range(0, flat.size, _CHUNK * step):
            _count_values(flat[start : start + _CHUNK], counts)
        yield counts


def denormal_share(values: Iterable[WeightValues]) -> float:
    """Return the share of elements that are denormal, 0 without any."""
    weights = list(values)
    elements = sum(weight.elements for weight in weights)
    return sum(weight.denormal for weight in weights) / elements if elements else 0.0


def is_denormal(array: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which elements are denormal: exponent 0, and not 0 themselves (IEEE 754)."""
    whole, exponent = _KINDS[array.dtype]
    bits: NDArray[np.unsignedinteger] = np.ascontiguousarray(array).view(whole)
    smallest = 1 << (8 * array.dtype.itemsize - exponent)
    return np.asarray((bits << 1) - 1 < smallest - 1)


def _count_values(part: NDArray[np.floating], counts: WeightValues) -> None:
    counts.elements += part.size
    if part.dtype in _KINDS:
        counts.denormal += int(np.count_nonzero(is_denormal(part)))
    size: NDArray[np.floating] = np.abs(part)
    top = size.max(initial=0)
    if not np.isfinite(top):
        counts.nan += int(np.count_nonzero(np.isnan(size)))
        counts.infinite += int(np.count_nonzero(np.isinf(size)))
        size = size[np.isfinite(size)]
        top = size.max(initial=0)
    if part.dtype != np.float16:
        counts.small += int(np.count_nonzero(size < _HALF_SMALL) - np.count_nonzero(size == 0))
        if top > HALF_MAX:
            counts.masks += int(np.count_nonzero(size >= _MASK))
            counts.over += int(np.count_nonzero((size > HALF_MAX) & (size < _MASK)))
