"""Block grids: one step for every few weights of a row, packed as onnxruntime reads them.

Weights are rows here: one row an output channel (or a table's entry), blocks along the inputs.
``weight = (integer - zero point) * step``, integers unsigned, the last block padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings

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
