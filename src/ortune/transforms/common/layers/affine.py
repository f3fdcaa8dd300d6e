"""What arithmetic with constants does to a tensor, as one factor and one summand a channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit
from ortune.transforms.common.simplify.constants import LARGE_BYTES

ARITHMETIC = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True)
class Affine:
    """``scale * x + shift``, each float64 of shape [channels], or [1] for all channels alike."""

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]

    def compose_with(self, after: Affine) -> Affine:
        """Return this map with another behind it."""
        return Affine(after.scale * self.scale, after.scale * self.shift + after.shift)

    @property
    def shifts(self) -> bool:
        """Whether it adds anything."""
        return bool(self.shift.any())

    @property
    def finite(self) -> bool:
        """Whether every number of it is one."""
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())

    def broadcast_channels(self, channels: int) -> Affine:
        """Return it with one number a channel."""
        return Affine(
            np.broadcast_to(self.scale, (channels,)), np.broadcast_to(self.shift, (channels,))
        )


UNCHANGED = Affine(np.ones(1), np.zeros(1))


@dataclass(frozen=True)
class ChannelAxis:
    """Where a tensor has its channels: axis 1 or -1, of so many (None: unknown)."""

    count: int
    axis: int
    rank: int | None


def read_affine(node: ir.Node, value: ir.Value, at: ChannelAxis, opset: int) -> Affine | None:
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
    unit_scale, no_shift = UNCHANGED.scale, UNCHANGED.shift
    match node.op_type:
        case "Add":
            return Affine(unit_scale, array)
        case "Mul":
            return Affine(array, no_shift)
        case "Sub":
            return Affine(unit_scale, -array) if first else Affine(-unit_scale, array)
        case _:
            with np.errstate(divide="ignore"):
                return Affine(1 / array, no_shift) if first else None


def of_batch_norm(node: ir.Node, opset: int) -> Affine | str:
    """Return what a BatchNormalization does in inference, or why that is not known.

    With f = scale / sqrt(variance + epsilon) it is ``f x + (shift - f mean)``. Training is
    declared by ``training_mode`` from opset 14 on, by more than one output from 7 to 13, by
    ``is_test`` before. Before 9, ``spatial`` = 0 normalized every position by itself.
    """
    outputs = [v for v in node.outputs[1:] if v.name]
    if edit.read_attribute(node, "training_mode", 0) or any(edit.is_read(v) for v in outputs):
        return "it is in training mode"
    if (opset < 7 and not edit.read_attribute(node, "is_test", 0)) or (opset < 14 and outputs):
        return "it is in training mode"
    if not edit.read_attribute(node, "spatial", 1):
        return "it normalizes every position by itself"
    arrays = [read_fixed_input(node, index) for index in range(1, 5)]
    if any(array is None or array.ndim != 1 for array in arrays):
        return "its statistics are not constant"
    scale, shift, mean, variance = (np.asarray(array).astype(np.float64) for array in arrays)
    spread = variance + edit.read_attribute(node, "epsilon", 1e-5)
    if not (spread > 0).all():
        return "its variance is not positive"
    factor = scale / np.sqrt(spread)
    return Affine(factor, shift - factor * mean)


def read_fixed_input(node: ir.Node, index: int) -> NDArray[Any] | None:
    """Return the constant at an input that no caller may override; None when there is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return edit.read_fixed_array(value)


def _by_channel(
    node: ir.Node, value: ir.Value | None, at: ChannelAxis, opset: int
) -> NDArray[np.float64] | None:
    array = edit.read_fixed_array(value)
    if array is None or array.dtype.kind in "iub":
        return None
    shape = array.shape
    if opset < 7 and edit.read_attribute(node, "axis", None) is not None:
        if at.rank is None:
            return None
        axis = edit.read_attribute(node, "axis", 0) % at.rank
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


OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class FoldableLayer:
    """A layer with a constant weight, and with a constant bias or none."""

    node: ir.Node
    # Of its weight. Conv: [out, in / group, kernel...]. ConvTranspose: [in, out / group,
    # kernel...], where group g has the inputs of its share and the outputs of its share. Gemm:
    # [in, out], or [out, in] with transB. MatMul: [in, out].
    shape: tuple[int, ...]

    @property
    def convolves(self) -> bool:
        """Whether its channels are axis 1."""
        return self.node.op_type in ("Conv", "ConvTranspose")

    @property
    def group(self) -> int:
        """Groups of a convolution; 1 for the others."""
        return int(edit.read_attribute(self.node, "group", 1)) if self.convolves else 1

    @property
    def outputs(self) -> int:
        """Output channels."""
        match self.node.op_type:
            case "Conv":
                return self.shape[0]
            case "ConvTranspose":
                return self.shape[1] * self.group
            case "Gemm" if edit.read_attribute(self.node, "transB", 0):
                return self.shape[0]
            case _:
                return self.shape[1]

    @property
    def inputs(self) -> int:
        """Input channels of a convolution."""
        if self.node.op_type == "Conv":
            return self.shape[1] * self.group
        return self.shape[0]

    @property
    def channels(self) -> ChannelAxis:
        """Where its output has its channels."""
        if self.convolves:
            return ChannelAxis(self.outputs, 1, len(self.shape))
        if self.node.op_type == "Gemm":
            return ChannelAxis(self.outputs, -1, 2)
        x = self.node.inputs[0]
        shape = edit.shape_of(x)
        return ChannelAxis(self.outputs, -1, None if shape is None else len(shape))

    @property
    def has_padding(self) -> bool:
        """Whether a convolution reads zeros beside its input."""
        mode = edit.read_attribute(self.node, "auto_pad", "NOTSET")
        return mode != "VALID" and (
            mode != "NOTSET" or any(edit.read_attribute(self.node, "pads", ()))
        )


def as_foldable_layer(node: ir.Node | None) -> FoldableLayer | None:
    """Return a node as a layer; None when it is none of `OPS` or its weight may change."""
    if node is None or node.domain or node.op_type not in OPS or len(node.inputs) < 2:
        return None
    weight, bias = [*node.inputs, None][1:3]
    tensor = edit.const_tensor(weight)
    if tensor is None or edit.is_overridable(weight) or not tensor.dtype.is_floating_point():
        return None
    if bias is not None and (edit.const_tensor(bias) is None or edit.is_overridable(bias)):
        return None
    shape = tuple(int(size) for size in tensor.shape.numpy())
    if len(shape) < 2 or (node.op_type in ("Gemm", "MatMul") and len(shape) != 2):
        return None
    return FoldableLayer(node, shape)


def spread_out(at: FoldableLayer, factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors in a shape that multiplies the weights along their output channels."""
    taps = (1,) * (len(at.shape) - 2)
    match at.node.op_type:
        case "Conv":
            return factor.reshape(-1, 1, *taps)
        case "ConvTranspose":
            share = factor.reshape(at.group, 1, at.shape[1])
            each = (at.group, at.shape[0] // at.group, at.shape[1])
            return np.broadcast_to(share, each).reshape(at.shape[0], at.shape[1], *taps)
        case "Gemm" if edit.read_attribute(at.node, "transB", 0):
            return factor.reshape(-1, 1)
        case _:
            return factor.reshape(1, -1)


def spread_in(at: FoldableLayer, factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors in a shape that multiplies a convolution's weights along its inputs."""
    taps = (1,) * (len(at.shape) - 2)
    if at.node.op_type == "ConvTranspose":
        return factor.reshape(-1, 1, *taps)
    rows = factor.reshape(at.group, at.shape[1])
    return np.repeat(rows, at.shape[0] // at.group, axis=0).reshape(-1, at.shape[1], *taps)


@dataclass
class Absorber:
    """Computes new weights in float64 and stores them in the old ones' type.

    Equal weights that take up equal maps are stored once. Every method returns why it can not be
    done, having changed nothing; None when it is done.
    """

    editor: edit.Editor
    _scaled_weights: dict[tuple[Any, ...], ir.Value] = field(default_factory=dict)

    def absorb_output_affine(
        self, at: FoldableLayer, affine: Affine, chain: Sequence[ir.Node]
    ) -> str | None:
        """Let a layer compute what the end of a chain behind it did.

        ``f (W x + b) + t = (f W) x + (f b + t)``. Gemm is ``alpha A B + beta C``: C becomes
        ``f beta C + t`` and beta 1. MatMul has no bias: an Add takes the shift.

        Args:
            at: The layer; the chain alone reads it.
            affine: What the whole chain does, in channels of the layer's output.
            chain: The nodes, in order; all of the layer's graph and each read by the next alone.
        """
        affine = affine.broadcast_channels(at.outputs)
        node, has_bias = at.node, at.node.op_type != "MatMul"
        bias = self._compute_output_bias(at, affine) if has_bias else None
        if isinstance(bias, str):
            return bias
        weight = self._scale_weight(at, spread_out(at, affine.scale))
        if isinstance(weight, str):
            return weight
        node.replace_input_with(1, weight)
        if bias is not None:
            self._set_bias(node, bias)
        end, result = chain[-1], node.outputs[0]
        if not has_bias and affine.shifts:
            result = self._add_shift(at, affine.shift, end)
        name, old = end.outputs[0].name, end.outputs[0]
        if result.shape is None:
            result.shape, result.type = old.shape, result.type or old.type
        edit.redirect_uses(old, result)
        for step in reversed(chain):
            edit.remove_node(step)
        # Calibration knows tensors by name: a name that stays must stand for the values it had.
        result.name = name
        return None

    def absorb_input_affine(self, at: FoldableLayer, affine: Affine, x: ir.Value) -> str | None:
        """Let a convolution read `x` where it read ``affine(x)``.

        ``W (s x + t) + b = (W s) x + (W t + b)``, the shift summed over all that an output reads.
        For that every tap must lie on the input: zeros of the padding are not shifted.
        """
        if affine.shifts and at.node.op_type == "ConvTranspose":
            return "the shift in front of a transposed convolution is not the same at its borders"
        if affine.shifts and at.has_padding:
            return "the shift in front of it does not reach the zeros of its padding"
        affine = affine.broadcast_channels(at.inputs)
        bias = self._compute_input_bias(at, affine) if affine.shifts else None
        if isinstance(bias, str):
            return bias
        weight = self._scale_weight(at, spread_in(at, affine.scale))
        if isinstance(weight, str):
            return weight
        at.node.replace_input_with(1, weight)
        if bias is not None:
            self._set_bias(at.node, bias)
        at.node.replace_input_with(0, x)
        return None

    def _scale_weight(self, at: FoldableLayer, factor: NDArray[np.float64]) -> ir.Value | str:
        value = at.node.inputs[1]
        tensor = edit.const_tensor(value)
        if value is None or tensor is None:
            return "its weight is not constant"
        if (factor == 1).all():
            return value
        if any(user.op_type != at.node.op_type for user, _ in value.uses()):
            return "its weight is read by other operators too"
        if tensor.nbytes > LARGE_BYTES:
            return "its weight is too large to be computed again"
        key = (value, factor.shape, factor.tobytes())
        if key not in self._scaled_weights:
            old = np.asarray(tensor.numpy())
            scaled = (old.astype(np.float64) * factor).astype(old.dtype)
            if not np.isfinite(scaled.astype(np.float64)).all():
                return "the new weights are not finite"
            name = f"{at.node.name}_weight_scaled"
            self._scaled_weights[key] = self.editor.add_constant(name, scaled)
        return self._scaled_weights[key]

    def _compute_output_bias(self, at: FoldableLayer, affine: Affine) -> NDArray[Any] | str | None:
        bias = read_fixed_input(at.node, 2)
        beta = edit.read_attribute(at.node, "beta", 1.0) if at.node.op_type == "Gemm" else 1.0
        if bias is None and not affine.shifts:
            return None
        old = np.zeros(1) if bias is None else beta * bias.astype(np.float64)
        return _round_bias(at, affine.scale * old + affine.shift)

    def _compute_input_bias(self, at: FoldableLayer, affine: Affine) -> NDArray[Any] | str:
        weight, bias = read_fixed_input(at.node, 1), read_fixed_input(at.node, 2)
        if weight is None:
            return "its weight is not constant"
        axes = tuple(range(1, weight.ndim))
        summed = (weight.astype(np.float64) * spread_in(at, affine.shift)).sum(axis=axes)
        return _round_bias(at, summed if bias is None else summed + bias.astype(np.float64))

    def _set_bias(self, node: ir.Node, array: NDArray[Any]) -> None:
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, self.editor.add_constant(f"{node.name}_bias_shifted", array))
        if node.op_type == "Gemm":
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)

    def _add_shift(self, at: FoldableLayer, shift: NDArray[np.float64], end: ir.Node) -> ir.Value:
        tensor = edit.const_tensor(at.node.inputs[1])
        dtype = np.float32 if tensor is None else tensor.dtype.numpy()
        bias = self.editor.add_constant(f"{at.node.name}_bias", shift.astype(dtype))
        inputs, name = [at.node.outputs[0], bias], f"{at.node.name}_add"
        return self.editor.add_node(end, "Add", inputs, name=name, like=end.outputs[0])


def _round_bias(at: FoldableLayer, numbers: NDArray[np.float64]) -> NDArray[Any] | str:
    tensor = edit.const_tensor(at.node.inputs[1])
    if tensor is None:
        return "its weight is not constant"
    rounded = numbers.astype(tensor.dtype.numpy())
    finite = np.isfinite(rounded.astype(np.float64)).all()
    return rounded if finite else "the new bias is not finite"
