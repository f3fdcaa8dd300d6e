"""Which layers are to become integer, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core import wording
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common.layers import Layer, is_last, layers
from ortune.quantizers.common.node_filter import chosen
from ortune.quantizers.common.qdq import runtime_rules
from ortune.quantizers.common.qdq.runtime_rules import LAYERS, Gives

RECURRENT = ("LSTM", "GRU", "RNN")
QUANTIZED = "are quantized already"


@dataclass(frozen=True)
class Scope:
    """The answer of `scope`.

    Attributes:
        layers: To become integer, by graph: the main graph first, then bodies.
        left: Nodes that the user wants in float.
        why: Multiplying node that stays in float -> reason.
    """

    layers: Mapping[ir.Graph, tuple[Layer, ...]]
    left: frozenset[ir.Node]
    why: dict[ir.Node, str]


def scope(
    model: ir.Model,
    ops: Sequence[str],
    *,
    target: runtime_rules.Target = "cpu",
    include: Sequence[str],
    exclude: Sequence[str],
    keep_first: int,
    head: bool,
    min_side: int,
) -> Scope:
    """Choose the layers of the main graph and of all bodies; limits are as of `int8-static`.

    Raises:
        BadSettings: A pattern matches no node.
    """
    left = chosen(model, exclude, "exclude")
    only = chosen(model, include, "include")
    graphs = [model.graph, *model.graph.subgraphs()]
    found = {graph: list(layers(graph, LAYERS)) for graph in graphs}
    every = [layer for part in found.values() for layer in part]
    wanted = [layer for layer in every if layer.op in ops and layer.node not in left]
    convolutions = [layer for layer in wanted if layer.op == "Conv"]
    first = {layer.node for layer in convolutions[:keep_first]}
    nodes, known = {layer.node for layer in wanted}, {layer.node for layer in every}
    why: dict[ir.Node, str] = {
        node: _no_layer(node)
        for node in edit.every_node(model)
        if node.op_type in LAYERS and node.domain in ("", "ai.onnx") and node not in known
    }
    for layer in every:
        if layer.op not in ops:
            why[layer.node] = f"are {layer.op}, which is not among `ops`"
        elif layer.node in left:
            why[layer.node] = "are excluded"
        elif include and layer.node not in only:
            why[layer.node] = "are not included"
        elif layer.node in first:
            why[layer.node] = "come first"
        elif (reason := _unfit(layer, min_side, target)) is not None:
            why[layer.node] = reason
        elif convolutions and not head and _is_head(layer, nodes):
            why[layer.node] = "are the head"
    fit = {
        graph: tuple(layer for layer in part if layer.node not in why)
        for graph, part in found.items()
    }
    return Scope(fit, left, why)


def summary(why: Mapping[ir.Node, str], done: int) -> str:
    """Say what stays in float, counted by reason; an empty text if nothing does."""
    if not why:
        return ""
    counted = Counter(why.values()).most_common()
    text = ", ".join(f"{reason} ({count})" for reason, count in counted)
    return (
        f"{len(why)} of {wording.count(len(why) + done, 'layer')} left in float: those that {text}"
    )


def note(model: ir.Model, why: Mapping[ir.Node, str], done: int) -> None:
    """Note what stays in float; recurrent layers by name."""
    if text := summary(why, done):
        edit.note(model, text)
    recurrent = Counter(n.op_type for n in edit.every_node(model) if n.op_type in RECURRENT)
    if recurrent:
        text = ", ".join(f"{count} {op}" for op, count in sorted(recurrent.items()))
        edit.note(model, f"{text} stay in float: int8-dynamic (LSTM) and int8-weights take them")


def _no_layer(node: ir.Node) -> str:
    if not isinstance(node.graph, ir.Graph):
        return "are inside local functions"
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = edit.const_tensor(weight)
    if qdq.is_weight(weight):
        return QUANTIZED
    if tensor is None:
        return "multiply two activations"
    if tensor.dtype != ir.DataType.FLOAT:
        return f"have {tensor.dtype.name.lower()} weights"
    return "have no integer form"


def _unfit(layer: Layer, min_side: int, target: runtime_rules.Target) -> str | None:
    """Say why an integer kernel would not compute the layer, or not pay; None when it would."""
    groups = edit.attribute(layer.node, "group", 1)
    if groups > 1 and runtime_rules.holds(target, Gives.FLOAT, layer.op, "in groups"):
        return f"are grouped {layer.op}, which {target} refuses in integers"
    if layer.convolves:
        constant = layer.bias is None or edit.const_tensor(layer.bias) is not None
        return None if constant else "have a bias that is not constant"
    if layer.op == "Gemm" and not _plain(layer):
        return "have a bias that no integer kernel adds"
    if min(layer.shape[-2:]) < min_side:
        return f"have a side shorter than {min_side}"
    return None


def _is_head(layer: Layer, nodes: set[ir.Node]) -> bool:
    """A matrix product of one row a sample that no other layer follows."""
    shape = layer.x.shape
    one_row = layer.op == "Gemm" or (shape is not None and len(shape) == 2)
    return one_row and not layer.convolves and is_last(layer.node, nodes)


def _plain(layer: Layer) -> bool:
    """A Gemm that the integer kernel computes: bias of one row, not scaled."""
    if layer.bias is None:
        return True
    tensor = edit.const_tensor(layer.bias)
    if tensor is None or edit.attribute(layer.node, "beta", 1.0) != 1.0:
        return False
    shape = tuple(tensor.shape.numpy())
    return bool(shape) and shape[-1] == layer.shape[layer.axis] and shape[-1] == tensor.size
