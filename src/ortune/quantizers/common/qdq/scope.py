"""Which layers are to become integer, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core import wording
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common.layers import Layer, find_layers, has_bounded_values, is_last
from ortune.quantizers.common.node_filter import match_nodes
from ortune.quantizers.common.qdq.runtime_rules import LAYERS, Target, Treatment, has_rule

RECURRENT = ("LSTM", "GRU", "RNN")
QUANTIZED = "are quantized already"


@dataclass(frozen=True)
class Scope:
    """The answer of `select_scope`."""

    # To become integer, by graph: the main graph first, then bodies.
    layers: Mapping[ir.Graph, tuple[Layer, ...]]
    excluded: frozenset[ir.Node]  # nodes that the user wants in float
    reasons: dict[ir.Node, str]  # multiplying node that stays in float -> reason


def select_scope(
    model: ir.Model,
    ops: Sequence[str],
    *,
    target: Target = "cpu",
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
    excluded = match_nodes(model, exclude, "exclude")
    only = match_nodes(model, include, "include")
    graphs = [model.graph, *model.graph.subgraphs()]
    layers_by_graph = {graph: list(find_layers(graph, LAYERS)) for graph in graphs}
    candidates = [layer for part in layers_by_graph.values() for layer in part]
    eligible = [layer for layer in candidates if layer.op in ops and layer.node not in excluded]
    convolutions = [layer for layer in eligible if layer.op == "Conv"]
    first = {layer.node for layer in convolutions[:keep_first]}
    nodes = {layer.node for layer in eligible}
    candidate_nodes = {layer.node for layer in candidates}
    reasons: dict[ir.Node, str] = {
        node: _explain_no_layer(node)
        for node in edit.walk_nodes(model)
        if node.op_type in LAYERS
        and node.domain in ("", "ai.onnx")
        and node not in candidate_nodes
    }
    for layer in candidates:
        if layer.op not in ops:
            reasons[layer.node] = f"are {layer.op}, which is not among `ops`"
        elif layer.node in excluded:
            reasons[layer.node] = "are excluded"
        elif include and layer.node not in only:
            reasons[layer.node] = "are not included"
        elif layer.node in first:
            reasons[layer.node] = "come first"
        elif (reason := _find_unfit_reason(layer, min_side, target)) is not None:
            reasons[layer.node] = reason
        elif convolutions and not head and _is_head(layer, nodes):
            reasons[layer.node] = "are the head"
    fit = {
        graph: tuple(layer for layer in part if layer.node not in reasons)
        for graph, part in layers_by_graph.items()
    }
    return Scope(fit, excluded, reasons)


def summarize_reasons(reasons: Mapping[ir.Node, str], done: int) -> str:
    """Say what stays in float, counted by reason; an empty text if nothing does."""
    if not reasons:
        return ""
    counted = Counter(reasons.values()).most_common()
    text = ", ".join(f"{reason} ({count})" for reason, count in counted)
    return (
        f"{len(reasons)} of {wording.format_count(len(reasons) + done, 'layer')} left in float: "
        f"those that {text}"
    )


def note_float_layers(model: ir.Model, reasons: Mapping[ir.Node, str], done: int) -> None:
    """Note what stays in float; recurrent layers by name."""
    if text := summarize_reasons(reasons, done):
        edit.add_note(model, text)
    recurrent = Counter(n.op_type for n in edit.walk_nodes(model) if n.op_type in RECURRENT)
    if recurrent:
        text = ", ".join(f"{count} {op}" for op, count in sorted(recurrent.items()))
        edit.add_note(
            model, f"{text} stay in float: int8-dynamic (LSTM) and int8-weights take them"
        )


def _explain_no_layer(node: ir.Node) -> str:
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
    if not has_bounded_values(weight):
        return "have infinity or NaN in the weight"
    return "have no integer form"


def _find_unfit_reason(layer: Layer, min_side: int, target: Target) -> str | None:
    """Say why an integer kernel would not compute the layer, or not pay; None when it would."""
    groups = edit.read_attribute(layer.node, "group", 1)
    if groups > 1 and has_rule(target, Treatment.FLOAT, layer.op, "in groups"):
        return f"are grouped {layer.op}, which {target} refuses in integers"
    if layer.convolves:
        constant = layer.bias is None or edit.const_tensor(layer.bias) is not None
        return None if constant else "have a bias that is not constant"
    if layer.op == "Gemm" and not _has_plain_bias(layer):
        return "have a bias that no integer kernel adds"
    if min(layer.shape[-2:]) < min_side:
        return f"have a side shorter than {min_side}"
    return None


def _is_head(layer: Layer, nodes: set[ir.Node]) -> bool:
    """A matrix product of one row a sample that no other layer follows."""
    shape = layer.x.shape
    one_row = layer.op == "Gemm" or (shape is not None and len(shape) == 2)
    return one_row and not layer.convolves and is_last(layer.node, nodes)


def _has_plain_bias(layer: Layer) -> bool:
    """A Gemm that the integer kernel computes: bias of one row, not scaled."""
    if layer.bias is None:
        return True
    tensor = edit.const_tensor(layer.bias)
    if tensor is None or edit.read_attribute(layer.node, "beta", 1.0) != 1.0:
        return False
    shape = tuple(tensor.shape.numpy())
    return bool(shape) and shape[-1] == layer.shape[layer.axis] and shape[-1] == tensor.size
