"""Takes the outliers out of an activation, so that one step for all of it is fine enough.

Two ways, both exact but for rounding:

- smoothing, ``x @ W == (x / s) @ (s * W)``: a channel's large values move into the weights, where
  every column has its own step. ``s = max|x|^alpha / max|W|^(1 - alpha)`` a channel, after
  SmoothQuant (Xiao et al., 2023);
- splitting: a few channels far above all others are multiplied in float beside the integer
  product. It adds a small product and an addition, so only narrowing layers get it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.observer import Range, Ranges
from ortune.graph.ir import edit
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.nodes import replace_output
from ortune.quantizers.common.qdq.placement import Placement, is_captured

FAR = 2.0
"""A channel is split off when it reaches this many times as far as those that stay."""


@dataclass(frozen=True)
class Smoothing:
    """What is done to an activation before its pair."""

    # What its channels are divided by, float32, shape [channels]; None for nothing.
    factor: NDArray[np.float32] | None
    split: tuple[int, ...]  # channels that a float product takes over
    seen: Range  # the range that is left to the integers

    def scale_weight(self, layer: Layer, array: NDArray[Any]) -> NDArray[Any]:
        """Fit a weight to the changed activation."""
        rows = self.factor
        if rows is None:
            rows = np.ones(self.count_input_channels(layer), np.float32)
        rows = np.where(np.isin(np.arange(len(rows)), self.split), np.float32(0), rows)
        return array * np.expand_dims(rows, layer.axis)

    @staticmethod
    def count_input_channels(layer: Layer) -> int:
        """Input channels of a matrix product, -1 for products of more than two axes."""
        return layer.shape[1 - layer.axis] if len(layer.shape) == 2 else -1


def find_smoothable(placement: Placement) -> dict[ir.Value, list[Layer]]:
    """Return the activations that matrix products alone read as integers, with their readers."""
    readers_by_value: dict[ir.Value, list[Layer]] = {}
    for layer in placement.layers:
        readers_by_value.setdefault(layer.x, []).append(layer)
    integer_nodes = (*placement.followers, *placement.products)
    followed = {value for node in integer_nodes for value in node.inputs}
    return {
        x: readers
        for x, readers in readers_by_value.items()
        if x not in placement.replaced
        and not is_captured(x, placement.graph)
        and x not in followed
        and not any(layer.convolves for layer in readers)
        and len({Smoothing.count_input_channels(layer) for layer in readers}) == 1
    }


def compute_smoothings(
    placement: Placement, ranges: Ranges, *, alpha: float, most: int
) -> dict[ir.Value, Smoothing]:
    """Choose what is done to the activations of one graph; see `compute_smoothing`."""
    if not alpha and not most:
        return {}
    candidates = {
        value: compute_smoothing(ranges[str(value.name)], readers, alpha=alpha, most=most)
        for value, readers in find_smoothable(placement).items()
        if value.name in ranges
    }
    return {value: candidate for value, candidate in candidates.items() if candidate is not None}


def compute_smoothing(
    seen: Range, layers: Sequence[Layer], *, alpha: float, most: int
) -> Smoothing | None:
    """Choose what to do to one activation.

    Args:
        alpha: Share of the outliers that moves into the weights; 0 moves nothing.
        most: Channels that may be split off.

    Returns:
        None when the channels were not observed or nothing helps.
    """
    width = Smoothing.count_input_channels(layers[0])
    bounds = np.asarray(seen.channels, np.float64).reshape(-1, 2)
    if len(bounds) != width or not width:
        return None
    reach = np.abs(bounds).max(axis=1)
    outputs = sum(layer.shape[layer.axis] for layer in layers)
    if 2 * outputs <= width and (split := _find_outliers(reach, most)):
        remaining_bounds = np.delete(bounds, split, axis=0)
        seen = Range(float(remaining_bounds.min()), float(remaining_bounds.max()))
        return Smoothing(None, split, seen)
    if not alpha:
        return None
    rows = np.maximum.reduce([_compute_row_maxima(layer) for layer in layers])
    usable = (reach > 0) & (rows > 0)
    factor = np.ones(width)
    factor[usable] = reach[usable] ** alpha / rows[usable] ** (1 - alpha)
    single: NDArray[np.float32] = factor.astype(np.float32)
    quotient = bounds / single[:, None]
    return Smoothing(single, (), Range(float(quotient.min()), float(quotient.max())))


def _find_outliers(reach: NDArray[np.float64], most: int) -> tuple[int, ...]:
    """Return the fewest channels, `most` at the utmost, that all others stay far below."""
    order = np.argsort(-reach, kind="stable")
    for count in range(1, min(most, len(order) - 1) + 1):
        if reach[order[count - 1]] >= FAR * reach[order[count]]:
            return tuple(sorted(int(i) for i in order[:count]))
    return ()


def _compute_row_maxima(layer: Layer) -> NDArray[np.float64]:
    array = layer.read_weight()
    top = np.maximum(array.max(axis=layer.axis), -array.min(axis=layer.axis))
    return np.asarray(top, np.float64)


def add_product(
    editor: edit.Editor, layer: Layer, array: NDArray[Any], split: tuple[int, ...], last: ir.Node
) -> None:
    """Add the float product of a few channels, by the weight before rounding, behind `last`.

    That is the layer's last node: the product, or the Add of its bias.
    """
    rows = np.take(array, split, 1 - layer.axis)
    index = editor.add_constant(f"{layer.x.name}_far", np.asarray(split, np.int64))
    weight = editor.add_constant(
        f"{layer.weight.name}_far", np.ascontiguousarray(rows if layer.axis == 1 else rows.T)
    )
    result = last.outputs[0]
    stem = str(result.name)
    far = editor.make_node("Gather", [layer.x, index], {"axis": -1}, name=f"{stem}_take")
    part = editor.make_node("MatMul", [far.outputs[0], weight], name=f"{stem}_far")
    uses = tuple(result.uses())
    addends = [result, part.outputs[0]]
    total = editor.make_node("Add", addends, name=f"{stem}_sum", like=result)
    edit.insert_after(last, far, part, total)
    for node, at in uses:
        node.replace_input_with(at, total.outputs[0])
    if result.is_graph_output():
        assert last.graph is not None
        replace_output(editor, last.graph, result, total.outputs[0])


@dataclass(frozen=True)
class _Part:
    """A constant input whose channels lie along the last axis, or along the first of two."""

    node: ir.Node
    index: int
    first: bool = False


def absorb_factor(
    editor: edit.Editor, value: ir.Value, factor: NDArray[np.float32], readers: Collection[ir.Node]
) -> bool:
    """Multiply a value's last axis by moving the factors upwards, and say whether it was done.

    They go through Relu and LeakyRelu and end in the constants of LayerNormalization, Mul, MatMul
    or Gemm, those of an Add between included. Nothing is changed when that cannot be, above all
    when something beside `readers` reads the value: a residual connection. Factors are positive,
    shape [channels].
    """
    parts = _find_scalable_parts(value, len(factor), readers)
    if parts is None:
        return False
    for part in parts:
        old = part.node.inputs[part.index]
        array = edit.const_array(old)
        assert array is not None and old is not None
        new = array * (factor[:, None] if part.first else factor)
        constant = editor.add_constant(f"{old.name}_smooth", new.astype(np.float32))
        part.node.replace_input_with(part.index, constant)
        edit.discard_constant(old)
    return True


def _find_scalable_parts(
    value: ir.Value | None, width: int, readers: Collection[ir.Node]
) -> list[_Part] | None:
    """Return the constants to multiply; None when the factors cannot go up from this value."""
    if value is None or value.is_graph_output():
        return None
    if any(use.node not in readers for use in value.uses()):
        return None
    node = value.producer()
    if node is None or node.domain or any(output.uses() for output in node.outputs[1:]):
        return None
    if any(reader.graph is not node.graph for reader in readers):
        return None
    match node.op_type:
        case "Relu" | "LeakyRelu":
            return _find_scalable_parts(node.inputs[0], width, {node})
        case "LayerNormalization":
            places = [k for k, operand in enumerate(node.inputs) if k and operand is not None]
            parts = [_Part(node, k) for k in places]
            return parts if all(_read_shape(part) == (width,) for part in parts) else None
        case "Mul" | "Add":
            return _find_operand_parts(node, width)
        case "MatMul" | "Gemm":
            weight = _Part(node, 1, first=bool(edit.read_attribute(node, "transB", 0)))
            size = _read_shape(weight)
            if size is None or len(size) != 2 or size[0 if weight.first else 1] != width:
                return None
            if len(node.inputs) < 3 or node.inputs[2] is None:
                return [weight]
            bias = _Part(node, 2)
            size = _read_shape(bias)
            fits = size is not None and (size[-1:] or (1,))[0] in (1, width)
            return [weight, bias] if fits else None
        case _:
            return None


def _find_operand_parts(node: ir.Node, width: int) -> list[_Part] | None:
    """Return the constants to multiply of a Mul or Add and above; None where that cannot be."""
    for index in (0, 1):
        size = _read_shape(_Part(node, index))
        if size is None:
            continue
        if size not in ((), (1,)) and (size[-1] != width or set(size[:-1]) - {1}):
            return None
        parts = [_Part(node, index)]
        if node.op_type == "Mul":
            return parts
        above = _find_scalable_parts(node.inputs[1 - index], width, {node})
        return None if above is None else parts + above
    if node.op_type == "Add" or node.inputs[0] is node.inputs[1]:
        return None
    first, second = node.inputs[:2]
    return _find_scalable_parts(second, width, {node}) or _find_scalable_parts(
        first, width, {node}
    )


def _read_shape(part: _Part) -> tuple[int, ...] | None:
    """Return the shape of a float32 constant, None for anything else."""
    value = part.node.inputs[part.index]
    tensor = edit.const_tensor(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or edit.is_overridable(value):
        return None
    return tuple(tensor.shape.numpy())
