"""Folds what follows a convolution channel by channel into its weight and bias.

Runtimes do so themselves for float weights, but cannot once the weight is an integer constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model import edit
from ortune.model.uses import is_read
from ortune.quantizers._layers import Layer, discard_weight, layers


@dataclass(frozen=True)
class Affine:
    """``scale * x + shift`` a channel, float64, shapes [channels] or []."""

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]


def fold(model: ir.Model) -> int:
    """Fold into the convolutions of the main graph and all bodies; return how many nodes went.

    Add, Sub, Mul and Div with constants of one value a channel, BatchNormalization and Identity
    are folded where they are the only reader.
    """
    editor = edit.Editor(model.graph)
    count = 0
    for graph in [model.graph, *model.graph.subgraphs()]:
        for layer in list(layers(graph, ("Conv", "ConvTranspose"))):
            if layer.bias is None or edit.const_tensor(layer.bias) is not None:
                count += _fold_behind(editor, layer)
    return count


def _fold_behind(editor: edit.Editor, layer: Layer) -> int:
    node, found = layer.node, []
    groups = edit.attribute(node, "group", 1)
    if layer.op == "ConvTranspose" and groups != 1:
        return 0
    channels = layer.shape[layer.axis]
    while (reader := _only_reader(node)) is not None:
        affine = _affine(reader, node.outputs[0], channels, len(layer.shape))
        if affine is None:
            break
        found.append(affine)
        _skip(node, reader)
    if any(affine.scale.size or affine.shift.size for affine in found):
        _rewrite(editor, layer, found)
    return len(found)


def _only_reader(node: ir.Node) -> ir.Node | None:
    uses = tuple(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output() or uses[0].node.graph is not node.graph:
        return None
    return uses[0].node


def _affine(reader: ir.Node, value: ir.Value, channels: int, rank: int) -> Affine | None:
    """Say what a node does to a convolution's output, None when that is no affine map."""
    nothing = np.zeros(0)
    if reader.domain:
        return None
    match reader.op_type:
        case "Identity":
            return Affine(nothing, nothing)
        case "BatchNormalization":
            return _of_batch_norm(reader)
        case "Add" | "Mul":
            others = [v for v in reader.inputs if v is not value]
            array = _by_channel(others[0], channels, rank) if len(others) == 1 else None
            if array is None:
                return None
            return Affine(nothing, array) if reader.op_type == "Add" else Affine(array, nothing)
        case "Sub" | "Div" if reader.inputs[0] is value:
            array = _by_channel(reader.inputs[1], channels, rank)
            if array is None or (reader.op_type == "Div" and not np.all(array)):
                return None
            return (
                Affine(nothing, -array) if reader.op_type == "Sub" else Affine(1 / array, nothing)
            )
        case _:
            return None


def _by_channel(value: ir.Value | None, channels: int, rank: int) -> NDArray[np.float64] | None:
    array = edit.const_array(value)
    if array is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or shape[1] not in (
        1,
        channels,
    ):
        return None
    return np.asarray(array.reshape(-1), np.float64)


def _of_batch_norm(node: ir.Node) -> Affine | None:
    arrays = [edit.const_array(value) for value in node.inputs[1:5]]
    if edit.attribute(node, "training_mode", 0) or any(array is None for array in arrays):
        return None
    if any(is_read(value) for value in node.outputs[1:]):
        return None
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    scale = gamma / np.sqrt(variance + edit.attribute(node, "epsilon", 1e-5))
    return Affine(scale, beta - mean * scale)


def _skip(node: ir.Node, reader: ir.Node) -> None:
    """Let the convolution make what the reader made, under its name."""
    old, new = reader.outputs[0], node.outputs[0]
    constants = [value for value in reader.inputs if value is not new]
    new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    assert node.graph is not None
    node.graph.remove(reader, safe=True)
    new.name = old.name
    for value in constants:
        edit.discard(value)


def _rewrite(editor: edit.Editor, layer: Layer, found: list[Affine]) -> None:
    weight: NDArray[Any] = layer.array().astype(np.float64)
    channels = layer.shape[layer.axis]
    held = edit.const_array(layer.bias)
    bias = np.zeros(channels) if held is None else held.astype(np.float64)
    scale = np.ones(channels)
    for affine in found:
        if affine.scale.size:
            scale, bias = scale * affine.scale, bias * affine.scale
        if affine.shift.size:
            bias = bias + affine.shift
    shape = [-1 if axis == layer.axis else 1 for axis in range(weight.ndim)]
    node = layer.node
    if np.any(scale != 1):
        folded = (weight * scale.reshape(shape)).astype(np.float32)
        node.replace_input_with(1, editor.constant(f"{layer.weight.name}_folded", folded))
        discard_weight(layer.weight)
    value = editor.constant(f"{node.outputs[0].name}_bias", bias.astype(np.float32))
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, value)
    edit.discard(layer.bias)
