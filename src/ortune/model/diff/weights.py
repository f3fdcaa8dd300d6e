"""Weights of two models set beside each other: equal, or equal after a known transformation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

_CHUNK = 1 << 22
_SAMPLE = 4096
_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)
ROUNDED = {
    ir.DataType.FLOAT16: 2.0**-10,
    ir.DataType.BFLOAT16: 2.0**-7,
    ir.DataType.FLOAT: 2.0**-22,
    ir.DataType.DOUBLE: 2.0**-50,
}
"""Floating-point type -> share of a value that its rounding may move it by."""


@dataclass
class Held:
    """A constant as its reader sees it: a stored tensor, and how it is brought to floats.

    Attributes:
        name: Of the stored tensor.
        tensor: As stored.
        scale: Of a DequantizeLinear behind it.
        zero: Its zero point.
        axis: Its axis, where the scale is no scalar.
        order: Of a Transpose behind it; the reader sees ``transpose(dequantized, order)``.
    """

    name: str
    tensor: ir.TensorProtocol
    scale: ir.TensorProtocol | None = None
    zero: ir.TensorProtocol | None = None
    axis: int = 1
    order: tuple[int, ...] | None = None
    _digest: str = field(default="", repr=False)
    _grid: NDArray[np.float32] | None = field(default=None, repr=False)
    _moments: tuple[float, ...] = field(default=(), repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """As the reader sees it."""
        plain = tuple(self.tensor.shape.numpy())
        return plain if self.order is None else tuple(plain[axis] for axis in self.order)

    @property
    def size(self) -> int:
        """Elements."""
        return int(self.tensor.size)

    @property
    def floating(self) -> bool:
        """The reader sees floating-point numbers."""
        return self.scale is not None or self.tensor.dtype in _FLOATS

    @property
    def digest(self) -> str:
        """Of type, shape and content as stored."""
        if not self._digest:
            self._digest = digest(self.tensor)
        return self._digest

    def floats(self) -> NDArray[np.float32]:
        """Return all elements as the reader sees them; in memory, four bytes each."""
        found: NDArray[np.float32] = np.asarray(self.tensor.numpy()).astype(np.float32)
        if self.scale is not None:
            scale = np.asarray(self.scale.numpy()).astype(np.float32)
            zero = np.zeros((), np.float32)
            if self.zero is not None:
                zero = np.asarray(self.zero.numpy()).astype(np.float32)
            if scale.ndim and scale.size > 1:
                scale = _spread(scale, found.shape, self.axis)
                zero = _spread(zero, found.shape, self.axis) if zero.ndim else zero
            found = (found - zero) * scale
        return found if self.order is None else found.transpose(self.order)

    @property
    def moments(self) -> tuple[float, ...]:
        """Smallest and largest element, and sums of powers: what no order changes."""
        if not self._moments and self.size:
            parts = [
                (part.min(), part.max(), part.sum(), (part * part).sum(), np.abs(part).sum())
                for part in _parts(self)
            ]
            lows, highs, *sums = zip(*parts, strict=True)
            self._moments = (
                float(min(lows)),
                float(max(highs)),
                *(float(sum(one)) for one in sums),
            )
        return self._moments

    def grid(self) -> NDArray[np.float32]:
        """Return some thousand elements as a matrix, the same places for the same shape."""
        if self._grid is None:
            self._grid = _matrix(self.seen())
        return self._grid

    def seen(self) -> NDArray[Any]:
        """Return all elements as the reader sees them, as stored where nothing is dequantized."""
        if self.scale is not None:
            return self.floats()
        array = np.asarray(self.tensor.numpy())
        return array if self.order is None else array.transpose(self.order)


def digest(tensor: ir.TensorProtocol) -> str:
    """Return a digest of dtype, shape and content; the content is streamed."""
    total = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    if tensor.dtype == ir.DataType.STRING:
        for text in np.asarray(tensor.numpy()).reshape(-1):
            total.update(str(text).encode() + b"\0")
        return total.hexdigest()
    for part in chunks(tensor):
        total.update(part)
    return total.hexdigest()


def chunks(tensor: ir.TensorProtocol) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in parts of 4 MB, without a copy of the whole."""
    array = np.asarray(tensor.numpy())
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    flat = array.reshape(-1).view(np.uint8).data
    for start in range(0, len(flat), _CHUNK):
        yield flat[start : start + _CHUNK]


def relation(one: Held, two: Held) -> str:
    """Say how the second of two constants comes from the first.

    Larger ones are compared by some thousand elements.

    Returns:
        ``equal`` or a relation of `ortune.model.diff.result.Weight`; empty for none.
    """
    if one.size != two.size:
        return ""
    if one.tensor.dtype == two.tensor.dtype and one.digest == two.digest:
        return _equal(one, two)
    if not (one.floating and two.floating):
        return "changed" if one.shape == two.shape else ""
    return _floating(one, two)


def _equal(one: Held, two: Held) -> str:
    if (one.scale is None) != (two.scale is None):
        return "changed"
    if one.order != two.order:
        return "transposed"
    scales = [held.scale for held in (one, two) if held.scale is not None]
    return "changed" if len({digest(scale) for scale in scales}) > 1 else "equal"


def _floating(one: Held, two: Held) -> str:
    found = _as_it_lies(one, two)
    if found:
        return found
    if one.shape != two.shape or one.shape[:1] == one.shape[1:]:
        for turned, other in _turned(one, two):
            if _near(turned, other, 1e-6):
                return "transposed"
            if like(turned, other) > 0.99:
                return "transposed, " + ("quantized" if _integer(one, two) else "scaled")
    if one.shape != two.shape:
        flat = one.moments == two.moments and bool(
            np.array_equal(np.ravel(one.seen()), np.ravel(two.seen()))
        )
        return "reshaped" if flat else ("reordered" if _reordered(one, two) else "")
    return "reordered" if one.size >= 16 and _reordered(one, two) else "changed"


def _as_it_lies(one: Held, two: Held) -> str:
    if one.shape != two.shape:
        return ""
    first, second = one.grid(), two.grid()
    types = {held.tensor.dtype for held in (one, two)} & _FLOATS
    loose = max((ROUNDED[kind] for kind in types), default=0.0)
    if not _integer(one, two) and len(types) > 1 and _near(first, second, loose):
        return "rounded"
    alike = like(first, second)
    if _integer(one, two):
        return "quantized" if alike > 0.9 else ""
    return "scaled" if alike > 0.9999 else ""


def _integer(one: Held, two: Held) -> bool:
    return one.scale is not None or two.scale is not None


def like(one: NDArray[np.float32], two: NDArray[np.float32]) -> float:
    """Return how alike two matrices are but for factors along either axis: 0 to 1."""
    if one.shape != two.shape:
        return 0.0
    return max(
        float(np.abs((_unit(one, axis) * _unit(two, axis)).sum(axis)).mean())
        if one.shape[axis] >= 4
        else 0.0
        for axis in range(one.ndim)
    )


def unit(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a matrix with rows of length 1; rows of zeros stay."""
    return _unit(matrix, 1)


def _unit(matrix: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    length = np.sqrt((matrix * matrix).sum(axis, keepdims=True))
    length[length == 0] = 1
    found: NDArray[np.float32] = matrix / length
    return found


def _near(one: NDArray[np.float32], two: NDArray[np.float32], share: float) -> bool:
    if one.shape != two.shape:
        return False
    limit = share * np.abs(one) + share * float(np.abs(one).max(initial=0)) * 1e-3
    return bool(np.all(np.abs(one - two) <= limit))


def _turned(one: Held, two: Held) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield some elements of both for each order of two axes that makes the shapes equal."""
    rank = len(one.shape)
    if rank != len(two.shape) or rank < 2 or sorted(one.shape) != sorted(two.shape):
        return
    for i in range(rank):
        for j in range(i + 1, rank):
            order = list(range(rank))
            order[i], order[j] = order[j], order[i]
            if tuple(one.shape[axis] for axis in order) == two.shape:
                yield _matrix(one.seen().transpose(order)), two.grid()


def _reordered(one: Held, two: Held) -> bool:
    """Say whether both hold the same numbers: by what depends on no order."""
    first, second = one.moments, two.moments
    if not first or not second or first[:2] != second[:2]:
        return False
    total, squares = first[4], first[3]
    return (
        abs(first[2] - second[2]) <= 1e-5 * total + 1e-30
        and abs(first[3] - second[3]) <= 1e-5 * squares + 1e-30
    )


def largest(one: Held, two: Held) -> tuple[float, float] | None:
    """Return the largest difference of elements, alone and as a share of the first's magnitude."""
    if one.shape != two.shape or one.tensor.dtype == ir.DataType.STRING:
        return None
    if not one.size:
        return 0.0, 0.0
    moved = top = 0.0
    for first, second in _both(one, two):
        moved = max(moved, float(np.abs(first - second).max(initial=0)))
        top = max(top, float(np.abs(first).max(initial=0)))
    return moved, moved / top if top else 0.0


def _both(one: Held, two: Held) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield equal parts of two constants as float32 (float64 for integers)."""
    yield from zip(_parts(one), _parts(two), strict=True)


def _parts(held: Held) -> Iterator[NDArray[Any]]:
    """Yield the elements in their order, 4 M at a time, as float32 (float64 for integers)."""
    wide = np.float32 if held.floating else np.float64
    flat = np.ravel(held.seen())
    for start in range(0, len(flat), _CHUNK):
        yield flat[start : start + _CHUNK].astype(wide)


def _spread(values: NDArray[Any], shape: tuple[int, ...], axis: int) -> NDArray[Any]:
    """Give scales the rank of what they scale; blocks are repeated."""
    if values.ndim == len(shape) and all(
        one in (1, dim) for one, dim in zip(values.shape, shape, strict=True)
    ):
        return values
    if values.ndim > 1:
        times = -(-shape[axis] // values.shape[axis])
        taken: NDArray[Any] = values.repeat(times, axis).take(range(shape[axis]), axis)
        return taken
    return values.reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))])


def _thinned(array: NDArray[Any]) -> NDArray[Any]:
    """Take every nth along each axis until about 4096 are left; the first axes keep most."""
    for axis in reversed(range(array.ndim)):
        if array.size <= _SAMPLE:
            break
        keep = max(1, _SAMPLE * array.shape[axis] // array.size, 32 if axis < 2 else 4)
        step = -(-array.shape[axis] // keep)
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    return array


def _matrix(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return some elements as rows of the first axis; the same places for the same shape."""
    if array.size > _SAMPLE and array.ndim:
        array = _thinned(array)
    rows = array.shape[0] if array.ndim > 1 else 1
    with np.errstate(all="ignore"):
        found: NDArray[np.float32] = np.nan_to_num(
            np.ascontiguousarray(array).reshape(rows, -1).astype(np.float32)
        )
    return found
