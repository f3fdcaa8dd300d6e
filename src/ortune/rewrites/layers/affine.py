"""What arithmetic with constants does to a tensor, as one factor and one summand a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph.edit import attribute
from ortune.model.graph.uses import is_read
from ortune.model.graph.values import fixed_array

ARITHMETIC = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True)
class Affine:
    """``scale * x + shift``, each float64 of shape [channels], or [1] for all channels alike."""

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]

    def then(self, after: Affine) -> Affine:
        """Return this map with another behind it."""
        return Affine(after.scale * self.scale, after.scale * self.shift + after.shift)

    @property
    def shifts(self) -> bool:
        """Whether it adds anything."""
        return bool(self.shift.any())

    @property
    def scales(self) -> bool:
        """Whether it multiplies by anything but 1."""
        return bool((self.scale != 1).any())

    @property
    def finite(self) -> bool:
        """Whether every number of it is one."""
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())

    def over(self, channels: int) -> Affine:
        """Return it with one number a channel."""
        return Affine(
            np.broadcast_to(self.scale, (channels,)), np.broadcast_to(self.shift, (channels,))
        )


UNCHANGED = Affine(np.ones(1), np.zeros(1))


@dataclass(frozen=True)
class ChannelAxis:
    """Where a tensor has its channels.

    Attributes:
        count: How many there are.
        axis: Which axis they are: 1, or -1 for the last.
        rank: Axes of the tensor; None where unknown.
    """

    count: int
    axis: int
    rank: int | None


def of_node(node: ir.Node, value: ir.Value, at: ChannelAxis, opset: int) -> Affine | None:
    """Return what Add, Sub, Mul, Div with a constant does to `value`; None when not affine.

    The constant must hold one number, or one a channel, and may not widen the tensor. A division
    by 0 gives a map that is not finite.
    """
    if node.domain or node.op_type not in ARITHMETIC or len(node.inputs) != 2:
        return None
    first = node.inputs[0] is value
    constant = node.inputs[1 if first else 0]
    if constant is value:
        return None
    array = _by_channel(node, constant, at, opset)
    if array is None:
        return None
    one, zero = UNCHANGED.scale, UNCHANGED.shift
    match node.op_type:
        case "Add":
            return Affine(one, array)
        case "Mul":
            return Affine(array, zero)
        case "Sub":
            return Affine(one, -array) if first else Affine(-one, array)
        case _:
            with np.errstate(divide="ignore"):
                return Affine(1 / array, zero) if first else None


def of_batch_norm(node: ir.Node, opset: int) -> Affine | str:
    """Return what a BatchNormalization does in inference, or why that is not known.

    With f = scale / sqrt(variance + epsilon) it is ``f x + (shift - f mean)``. Training is
    declared by ``training_mode`` from opset 14 on, by more than one output from 7 to 13, by
    ``is_test`` before. Before 9, ``spatial`` = 0 normalized every position by itself.
    """
    outputs = [v for v in node.outputs[1:] if v.name]
    if attribute(node, "training_mode", 0) or any(is_read(v) for v in outputs):
        return "it is in training mode"
    if (opset < 7 and not attribute(node, "is_test", 0)) or (opset < 14 and outputs):
        return "it is in training mode"
    if not attribute(node, "spatial", 1):
        return "it normalizes every position by itself"
    arrays = [constant(node, index) for index in range(1, 5)]
    if any(array is None or array.ndim != 1 for array in arrays):
        return "its statistics are not constant"
    scale, shift, mean, variance = (np.asarray(array).astype(np.float64) for array in arrays)
    spread = variance + attribute(node, "epsilon", 1e-5)
    if not (spread > 0).all():
        return "its variance is not positive"
    factor = scale / np.sqrt(spread)
    return Affine(factor, shift - factor * mean)


def constant(node: ir.Node, index: int) -> NDArray[Any] | None:
    """Return the constant at an input that no caller may override; None when there is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return fixed_array(value)


def _by_channel(
    node: ir.Node, value: ir.Value | None, at: ChannelAxis, opset: int
) -> NDArray[np.float64] | None:
    array = fixed_array(value)
    if array is None or array.dtype.kind in "iub":
        return None
    shape = array.shape
    if opset < 7 and attribute(node, "axis", None) is not None:
        if at.rank is None:
            return None
        axis = attribute(node, "axis", 0) % at.rank
        shape = (*shape, *(1,) * (at.rank - axis - len(shape)))
    if at.axis < 0:
        widens = len(shape) > (1 if at.rank is None else at.rank)
        channel = len(shape) - 1
    else:
        widens = len(shape) > (0 if at.rank is None else at.rank)
        channel = at.axis - (at.rank or 0) + len(shape)
    if widens or any(size != 1 for axis, size in enumerate(shape) if axis != channel):
        return None
    flat = array.reshape(-1).astype(np.float64)
    return flat if flat.size in (1, at.count) and flat.size else None
