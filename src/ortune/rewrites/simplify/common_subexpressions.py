"""Nodes that compute the same from the same: one is enough."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from ortune.model.graph.edit import Graph, attribute, bodies
from ortune.model.graph.match import RANDOM
from ortune.model.graph.replace import forward

_MODES = frozenset(("Dropout", "BatchNormalization"))
"""Drawn, or with outputs that are states, while they train."""

_SINGLE = "DequantizeLinear"
"""Runtimes fuse one into the node that reads it; each reader has its own."""


def share_nodes(model: ir.Model) -> int:
    """Let the first of several equal nodes serve the readers of all; return how many went.

    Equal: operator, attributes, inputs and types. A body sees the nodes around it as well. What
    is drawn at random, has bodies or comes from another domain is left alone, and so is one whose
    result is an output of a graph.
    """
    tops: list[Graph] = [model.graph, *model.functions.values()]
    return sum(_share(graph, {}) for graph in tops)


def _share(graph: Graph, seen: dict[Hashable, ir.Node]) -> int:
    count = 0
    for node in list(graph):
        for body in bodies(node):
            count += _share(body, dict(seen))
        key = _key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is not node and _replace(node, first):
            count += 1
    return count


def _replace(node: ir.Node, first: ir.Node) -> bool:
    if any(value.is_graph_output() for value in node.outputs):
        return False
    used = [bool(value.uses()) for value in node.outputs]
    if not any(used):
        return False
    for old, new in zip(node.outputs, first.outputs, strict=True):
        if old.uses():
            if not new.name:
                return False
            if new.shape is None:
                new.shape = old.shape
    for old, new in zip(node.outputs, first.outputs, strict=True):
        forward(old, new)
    return True


def _key(node: ir.Node) -> Hashable | None:
    if node.domain or node.op_type in RANDOM or node.op_type == _SINGLE:
        return None
    if any(True for _ in bodies(node)):
        return None
    if node.op_type in _MODES and attribute(node, "training_mode", 0):
        return None
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        return None
    attributes = []
    for name, held in sorted(node.attributes.items()):
        if held.is_ref():
            return None
        attributes.append((name, _plain(held)))
    inputs = tuple(id(value) if value is not None else None for value in node.inputs)
    kinds = tuple((value.type, bool(value.name)) for value in node.outputs)
    return (node.domain, node.op_type, node.overload, inputs, tuple(attributes), kinds)


def _plain(held: ir.Attr) -> Hashable:
    if held.type == ir.AttributeType.TENSOR:
        tensor = held.as_tensor()
        return (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
    if isinstance(held.value, (list, tuple)):
        return (held.type, tuple(map(str, held.value)))
    return (held.type, str(held.value))
