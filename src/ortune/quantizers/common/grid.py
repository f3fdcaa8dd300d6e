"""Integer grids: which step and zero point cover a range, and the rounding onto them.

The arithmetic is that of ONNX QuantizeLinear: ``q = saturate(round_half_even(x / scale) + zero)``.

In block grids a few weights of a row share a step, packed as onnxruntime reads them: one row an
output channel (or a table's entry), blocks along the inputs, ``weight = (integer - zero point) *
step``, integers unsigned, the last block padded with zeros.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.observer import Range

Kind: TypeAlias = Literal["u8", "s8", "u16", "s16"]

DTYPES: dict[Kind, type[np.unsignedinteger[Any] | np.signedinteger[Any]]] = {
    "u8": np.uint8,
    "s8": np.int8,
    "u16": np.uint16,
    "s16": np.int16,
}
SMALLEST = 1e-12
"""A step below this would make products of steps vanish in float32."""

BLOCK = 1 << 22
"""Elements rounded at a time: the temporary arrays stay small beside the weights."""


@dataclass(frozen=True)
class Grid:
    """Steps and zero points, scalars or one a channel."""

    scale: NDArray[np.float32]  # float32, shape [] or [channels]
    zero: NDArray[Any]  # uint8 or int8 (for activations 16 bits too), same shape
    axis: int | None = None  # channel axis; None for one grid over the tensor

    def quantize(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round float values of any shape onto the grid, a block of rows at a time."""
        out = np.empty(values.shape, self.zero.dtype)
        if not values.size:
            return out
        limits = np.iinfo(self.zero.dtype)
        rows = max(1, BLOCK * len(values) // values.size) if values.ndim else 1
        scale = self._align_to_axis(self.scale, values.ndim)
        zero = self._align_to_axis(self.zero, values.ndim)
        for start in range(0, len(values) if values.ndim else 1, rows):
            part = slice(start, start + rows) if values.ndim else ()
            cut = part if self.axis == 0 and values.ndim else ()
            block = np.rint(values[part] / scale[cut]) + zero[cut].astype(np.float32)
            out[part] = np.clip(block, limits.min, limits.max)
        return out

    def dequantize(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return the float32 values that the integers stand for."""
        scale = self._align_to_axis(self.scale, values.ndim)
        zero = self._align_to_axis(self.zero, values.ndim)
        wide = values.astype(np.int32) - zero.astype(np.int32)
        return np.asarray(wide.astype(np.float32) * scale, np.float32)

    def _align_to_axis(self, array: NDArray[Any], rank: int) -> NDArray[Any]:
        if self.axis is None:
            return array
        shape = [1] * rank
        shape[self.axis] = -1
        return array.reshape(shape)


def can_cover(seen: Range) -> bool:
    """Say whether a grid can cover the range; an all-zero tensor's cannot."""
    return max(seen.high, 0.0) - min(seen.low, 0.0) > 255 * SMALLEST


def make_activation_grid(seen: Range, kind: Kind, *, symmetric: bool = False) -> Grid:
    """Return the grid that covers a range and zero, zero exactly.

    Args:
        symmetric: Zero point in the middle (0 of signed integers) and the same step on both
            sides.
    """
    limits = np.iinfo(DTYPES[kind])
    steps = int(limits.max) - int(limits.min)
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    if symmetric:
        scale = np.float32(max(max(-low, high) / (steps // 2), SMALLEST))
        zero = 0.0 if limits.min < 0 else float(steps // 2 + 1)
    else:
        scale = np.float32(max((high - low) / steps, SMALLEST))
        # onnxruntime drops a Clip only if the grid ends within its bounds.
        while np.float32(steps) * scale > np.float32(high - low) and scale > SMALLEST:
            scale = np.nextafter(scale, np.float32(0))
        zero = float(np.clip(np.rint(limits.min - low / scale), limits.min, limits.max))
    return Grid(np.asarray(scale), np.asarray(zero, DTYPES[kind]))


def make_weight_grid(
    values: NDArray[Any], axis: int | None, kind: Kind = "s8", *, reduce_range: bool = False
) -> Grid:
    """Return symmetric grids of weights, one a slice along `axis` or one over all.

    Args:
        values: Any float dtype and shape.
        kind: ``u8`` stores the same numbers moved up by 128.
        reduce_range: Use 7 of the 8 bits: sums of products then fit 16 bits (x86 without VNNI).
    """
    axis = None if axis is None else axis % values.ndim
    other_axes = tuple(i for i in range(values.ndim) if i != axis) if axis is not None else None
    high, low = values.max(axis=other_axes, initial=0.0), values.min(axis=other_axes, initial=0.0)
    top = np.maximum(high, -low).astype(np.float32)
    # A channel of zeros takes any step; a small one keeps its bias exact.
    floor = max(float(top.max(initial=0.0)) * 1e-4, SMALLEST)
    scale = np.asarray(np.maximum(top, floor) / (63 if reduce_range else 127), np.float32)
    zero = np.full(scale.shape, 128 if kind == "u8" else 0, DTYPES[kind])
    return Grid(scale, zero, axis)


def quantize_bias(
    values: NDArray[Any], x_scale: NDArray[np.float32], grid: Grid
) -> tuple[NDArray[np.int32], NDArray[np.float32], Grid]:
    """Round a bias onto the steps of the int32 accumulator, ``scale = x_scale * weight scale``.

    Where the bias would not fit (tiny weights under a large bias), the weight's step grows.

    Args:
        values: Shape [channels].
        x_scale: Step of the activation, scalar.
        grid: The weight's. A transposed convolution in groups has one step for all channels of
            the same place in their groups.

    Returns:
        The integers, their steps, and the weight's grid, widened if need be.
    """
    size = np.abs(values.astype(np.float64))
    if grid.axis is None:
        size = np.asarray(size.max(initial=0.0))
    else:
        size = size.reshape(-1, len(grid.scale)).max(axis=0)
    needed = size / (float(x_scale) * 2.0**30)
    wide = np.maximum(grid.scale, needed).astype(np.float32)
    grid = Grid(wide, grid.zero, grid.axis)
    scale = np.asarray(np.float32(x_scale) * wide, np.float32)
    if grid.axis is not None:
        scale = np.tile(scale, len(values) // len(scale))
    rounded = np.rint(values.astype(np.float64) / scale.astype(np.float64))
    return rounded.astype(np.int32), scale, grid


Bits: TypeAlias = Literal[4, 8]
Array: TypeAlias = NDArray[Any]

SLAB = 1 << 22
"""Weights that are made float at a time: temporary arrays stay small beside the model."""


@dataclass(frozen=True)
class BlockSpec:
    """The kind of grid."""

    bits: Bits
    block: int  # weights that share a step: a power of two, 16 to 256
    symmetric: bool  # the zero point is the middle integer and is not stored

    def __post_init__(self) -> None:
        if self.block not in (16, 32, 64, 128, 256):
            raise BadSettings(
                f"block={self.block} is none that the kernels take",
                fix="give 16, 32, 64, 128 or 256; 32 is the most exact of the fast ones",
            )

    @property
    def top(self) -> int:
        """The largest integer."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The zero point of a symmetric grid."""
        return 1 << (self.bits - 1)

    def count_blocks(self, width: int) -> int:
        """Return how many blocks a row of `width` weights has, the padded one included."""
        return -(-width // self.block)


@dataclass(frozen=True, eq=False)
class BlockSteps:
    """The grid of some rows."""

    scale: Array  # float32 or float64, shape [rows, blocks]; its sign is free
    zero: Array  # integers in the same dtype and shape

    def quantize_blocks(self, folded: Array, spec: BlockSpec) -> Array:
        """Round folded weights, shape [rows, blocks, block], to whole floats in 0..top."""
        values = np.divide(folded, self.scale[..., None])
        np.rint(values, out=values)
        values += self.zero[..., None]
        return np.clip(values, 0, spec.top, out=values)

    def dequantize_blocks(self, integers: Array) -> Array:
        """Return what integers of shape [rows, blocks, block] stand for."""
        return np.asarray((integers - self.zero[..., None]) * self.scale[..., None])


def split_into_blocks(rows: Array, spec: BlockSpec) -> Array:
    """Cut rows into blocks: [rows, width] -> [rows, blocks, block], zeros at the end."""
    count, width = rows.shape
    blocks = spec.count_blocks(width)
    if blocks * spec.block != width:
        rows = np.pad(rows, ((0, 0), (0, blocks * spec.block - width)))
    return rows.reshape(count, blocks, spec.block)


def compute_block_steps(folded: Array, spec: BlockSpec, dtype: Any = np.float32) -> BlockSteps:
    """Return the grids that cover each block, zero exactly.

    A symmetric grid has one integer more below zero than above: the sign of its step is chosen
    so that the largest weight falls there (as onnxruntime's own quantizer does). Weights are
    folded, shape [rows, blocks, block]; steps are rounded to `dtype`, in which they are stored.
    """
    low, high = folded.min(axis=-1), folded.max(axis=-1)
    if spec.symmetric:
        extreme = np.where(-low > high, low, high)
        scale = round_steps(extreme / -spec.middle, dtype)
        return BlockSteps(scale, np.full(scale.shape, spec.middle, scale.dtype))
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = round_steps((high - low) / spec.top, dtype)
    return BlockSteps(scale, np.clip(np.rint(-low / scale), 0, spec.top))


def round_steps(scale: Array, dtype: Any) -> Array:
    """Round steps to a stored dtype; those that vanish in it become 1, where 0 stays 0."""
    kept = scale.astype(dtype).astype(scale.dtype)
    return np.where(np.abs(kept) < float(np.finfo(dtype).tiny), np.ones_like(kept), kept)


def pack_integers(integers: Array, bits: Bits) -> NDArray[np.uint8]:
    """Pack along the last axis, the earlier weight in the lower bits; an odd one is padded."""
    integers = integers.astype(np.uint8)
    if bits == 8:
        return integers
    if integers.shape[-1] % 2:
        integers = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, 1)])
    return np.asarray(integers[..., 0::2] | (integers[..., 1::2] << 4), np.uint8)


def unpack_integers(packed: Array, bits: Bits) -> NDArray[np.uint8]:
    """Undo `pack_integers`; a padded weight stays."""
    if bits == 8:
        return np.asarray(packed, np.uint8)
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight as it is stored."""

    spec: BlockSpec
    width: int  # weights a row, padding not counted
    integers: NDArray[np.uint8]  # uint8, shape [rows, blocks, block * bits / 8]
    scale: Array  # float32 or float16, shape [rows, blocks]
    # uint8, packed, shape [rows, ceil(blocks * bits / 8)]; None when symmetric.
    zero: NDArray[np.uint8] | None

    def unpack_zero_points(self) -> Array:
        """Return the zero points, uint8, shape [rows, blocks]."""
        if self.zero is None:
            return np.full(self.scale.shape, self.spec.middle, np.uint8)
        return unpack_integers(self.zero, self.spec.bits)[:, : self.scale.shape[1]]
