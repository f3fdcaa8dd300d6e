"""Constants of two models compared: equal, or equal after a known transformation."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

_CHUNK = 1 << 22
_SAMPLE = 4096
_ROUNDED = {
    ir.DataType.FLOAT16: 2.0**-10,
    ir.DataType.BFLOAT16: 2.0**-7,
    ir.DataType.FLOAT: 2.0**-22,
    ir.DataType.DOUBLE: 2.0**-50,
}
"""Floating-point type -> share of a value that its rounding may move it by."""


@dataclass
class Constant:
    """A constant as its reader sees it: a stored tensor, and how it is brought to floats."""

    name: str
    tensor: ir.TensorProtocol
    scale: ir.TensorProtocol | None = None  # of a DequantizeLinear behind it
    zero: ir.TensorProtocol | None = None
    axis: int = 1  # its axis, where the scale is no scalar
    # Of a Transpose behind it; the reader sees ``transpose(dequantized, order)``.
    order: tuple[int, ...] | None = None

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of the tensor in the file."""
        return tuple(self.tensor.shape.numpy())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that the reader sees."""
        plain = self.file_shape
        return plain if self.order is None else tuple(plain[axis] for axis in self.order)

    @property
    def size(self) -> int:
        """Elements."""
        return int(self.tensor.size)

    @property
    def floating(self) -> bool:
        """The reader sees floating-point numbers."""
        return self.scale is not None or self.tensor.dtype in _ROUNDED

    @cached_property
    def digest(self) -> str:
        """Digest of type, shape and content as stored."""
        return digest_tensor(self.tensor)

    @cached_property
    def grid(self) -> NDArray[np.float32]:
        """Some thousand elements as rows of the first axis; the same places for one shape."""
        return _sample_matrix(self.read_elements())

    @cached_property
    def moments(self) -> tuple[float, float, float, float]:
        """Smallest and largest element, sum and sum of squares: what no order changes."""
        lows, highs, sums, squares = [0.0], [0.0], [0.0], [0.0]
        for part in self.stream_elements():
            wide = part.astype(np.float64)
            lows.append(float(wide.min()))
            highs.append(float(wide.max()))
            sums.append(float(wide.sum()))
            squares.append(float(np.square(wide).sum()))
        return min(lows), max(highs), sum(sums), sum(squares)

    def read_elements(self) -> NDArray[Any]:
        """Return all elements as the reader sees them, as stored where nothing is dequantized."""
        elements = np.asarray(self.tensor.numpy())
        if self.scale is not None:
            scale = _broadcast_scale(np.asarray(self.scale.numpy()), elements.shape, self.axis)
            elements = elements.astype(np.float32)
            if self.zero is not None:
                zero = np.asarray(self.zero.numpy()).astype(np.float32)
                elements = elements - _broadcast_scale(zero, elements.shape, self.axis)
            elements = elements * scale.astype(np.float32)
        return elements if self.order is None else elements.transpose(self.order)

    def stream_elements(self) -> Iterator[NDArray[Any]]:
        """Yield the elements in their order, 4 M at a time, as float32 (float64 for integers)."""
        wide = np.float32 if self.floating else np.float64
        flat = np.ravel(self.read_elements())
        for start in range(0, len(flat), _CHUNK):
            yield flat[start : start + _CHUNK].astype(wide)


def digest_tensor(tensor: ir.TensorProtocol) -> str:
    """Return a digest of dtype, shape and content; the content is streamed."""
    total = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    array = np.asarray(tensor.numpy())
    if tensor.dtype == ir.DataType.STRING:
        for text in array.reshape(-1):
            total.update(str(text).encode() + b"\0")
        return total.hexdigest()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    for start in range(0, len(flat), _CHUNK):
        total.update(flat[start : start + _CHUNK])
    return total.hexdigest()


def classify_relation(first: Constant, second: Constant) -> str:
    """Say how the second of two constants comes from the first.

    Larger ones are compared by some thousand elements.

    Returns:
        ``equal`` or a relation of `ortune.graph.diff.result.Weight`; empty for none.
    """
    if first.size != second.size:
        return ""
    same = first.shape == second.shape
    if first.tensor.dtype == second.tensor.dtype and first.digest == second.digest:
        if (first.scale is None) != (second.scale is None):
            return "changed"
        if first.order != second.order:
            return "transposed"
        scales = {digest_tensor(s) for s in (first.scale, second.scale) if s is not None}
        return "changed" if len(scales) > 1 else "equal"
    if not (first.floating and second.floating):
        return "changed" if same else ""
    relation = _compare_in_place(first, second) if same else ""
    if not relation and (not same or first.shape[:1] == first.shape[1:]):
        relation = _find_transposition(first, second)
    if not relation and (first.size >= 16 or not same) and is_reordered(first, second):
        alike = not same and np.array_equal(
            np.ravel(first.read_elements()), np.ravel(second.read_elements())
        )
        relation = "reshaped" if alike else "reordered"
    return relation or ("changed" if same else "")


def _compare_in_place(first: Constant, second: Constant) -> str:
    types = {constant.tensor.dtype for constant in (first, second)} & _ROUNDED.keys()
    quantized = first.scale is not None or second.scale is not None
    loose = max((_ROUNDED[kind] for kind in types), default=0.0)
    if not quantized and len(types) > 1 and _is_near(first.grid, second.grid, loose):
        return "rounded"
    alike = compute_likeness(first.grid, second.grid)
    if quantized:
        return "quantized" if alike > 0.9 else ""
    return "scaled" if alike > 0.9999 else ""


def _find_transposition(first: Constant, second: Constant) -> str:
    """Try each order of two axes that makes the shapes equal."""
    if sorted(first.shape) != sorted(second.shape):
        return ""
    rank = len(first.shape)
    for i, j in itertools.combinations(range(rank), 2):
        order = list(range(rank))
        order[i], order[j] = j, i
        if tuple(first.shape[axis] for axis in order) != second.shape:
            continue
        turned = _sample_matrix(first.read_elements().transpose(order))
        if _is_near(turned, second.grid, 1e-6):
            return "transposed"
        if compute_likeness(turned, second.grid) > 0.99:
            quantized = first.scale is not None or second.scale is not None
            return "transposed, quantized" if quantized else "transposed, scaled"
    return ""


def compute_likeness(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Return how alike two matrices are but for factors along either axis: 0 to 1."""
    if first.shape != second.shape:
        return 0.0
    likeness = 0.0
    for axis in range(first.ndim):
        if first.shape[axis] >= 4:
            products = _normalize_rows(first, axis) * _normalize_rows(second, axis)
            likeness = max(likeness, float(np.abs(products.sum(axis)).mean()))
    return likeness


def match_scaled(
    first: list[NDArray[np.float32]], second: list[NDArray[np.float32]]
) -> Iterator[tuple[int, int]]:
    """Yield places in two lists of matrices that are alike but for factors, as no others are."""
    flat = [np.stack([_normalize_rows(grid).ravel() for grid in side]) for side in (first, second)]
    score = np.abs(flat[0] @ flat[1].T)
    for a, b in enumerate(score.argmax(1)):
        if score[:, b].argmax() == a and compute_likeness(first[a], second[int(b)]) > 0.95:
            yield a, int(b)


def _normalize_rows(matrix: NDArray[np.float32], axis: int = 1) -> NDArray[np.float32]:
    """Return a matrix with rows (or columns) of length 1; those of zeros stay."""
    length = np.sqrt((matrix * matrix).sum(axis, keepdims=True))
    length[length == 0] = 1
    return np.asarray(matrix / length)


def _is_near(first: NDArray[np.float32], second: NDArray[np.float32], share: float) -> bool:
    if first.shape != second.shape:
        return False
    slack = share * 1e-3 * float(np.abs(first).max(initial=0))
    return np.allclose(second, first, rtol=share, atol=slack)


def is_reordered(first: Constant, second: Constant) -> bool:
    """Say whether both hold the same numbers: by what depends on no order."""
    return bool(
        first.moments[:2] == second.moments[:2]
        and np.isclose(first.moments[3], second.moments[3], rtol=1e-9, atol=0)
        and abs(first.moments[2] - second.moments[2]) <= 1e-9 * first.moments[3] + 1e-9
    )


def largest_change(baseline: Constant, candidate: Constant) -> tuple[float, float] | None:
    """Return the largest difference of elements, alone and as a share of the first's magnitude."""
    if baseline.shape != candidate.shape or baseline.tensor.dtype == ir.DataType.STRING:
        return None
    moved = top = 0.0
    with np.errstate(invalid="ignore"):
        for first, second in zip(
            baseline.stream_elements(), candidate.stream_elements(), strict=True
        ):
            moved = max(moved, float(np.abs(first - second).max(initial=0)))
            top = max(top, float(np.abs(first).max(initial=0)))
    return moved, moved / top if top else 0.0


def _broadcast_scale(values: NDArray[Any], shape: tuple[int, ...], axis: int) -> NDArray[Any]:
    """Give scales the rank of what they scale; blocks are repeated."""
    if values.size == 1 or (
        values.ndim == len(shape)
        and all(size in (1, dim) for size, dim in zip(values.shape, shape, strict=True))
    ):
        return values
    if values.ndim > 1:
        times = -(-shape[axis] // values.shape[axis])
        return np.asarray(values.repeat(times, axis).take(range(shape[axis]), axis))
    return values.reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))])


def _sample_matrix(array: NDArray[Any]) -> NDArray[np.float32]:
    """Take every nth element along each axis; the first axes keep most."""
    for axis in reversed(range(array.ndim)):
        if array.size <= _SAMPLE:
            break
        keep = max(1, _SAMPLE * array.shape[axis] // array.size, 32 if axis < 2 else 4)
        step = -(-array.shape[axis] // keep)
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    rows = array.shape[0] if array.ndim > 1 else 1
    with np.errstate(all="ignore"):
        flat = np.ascontiguousarray(array).reshape(rows, -1).astype(np.float32)
        return np.asarray(np.nan_to_num(flat))
