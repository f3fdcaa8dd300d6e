"""Attention in a graph: two products of activations around a softmax, and what feeds them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.match import label

_FUSED = frozenset(
    {
        "Attention",
        "com.microsoft::DecoderMaskedMultiHeadAttention",
        "com.microsoft::GroupQueryAttention",
        "com.microsoft::MultiHeadAttention",
    }
)
_BETWEEN = frozenset(
    {"Add", "Cast", "Clip", "Div", "Dropout", "Identity", "Mul", "Reshape", "Sub", "Where"}
)
"""Operators between a product and the softmax."""
_SHAPING = (
    "Add Cast Concat Div Expand Identity Mul Reshape Slice Split Squeeze Sub Transpose Unsqueeze "
    "LayerNormalization RMSNormalization SimplifiedLayerNormalization RotaryEmbedding "
    "com.microsoft::RotaryEmbedding com.microsoft::SimplifiedLayerNormalization"
)
_LEADING = frozenset(_SHAPING.split())
"""Operators between a projection and the product that takes it."""
_FAR = 12
"""Nodes on such ways at most."""


@dataclass(frozen=True)
class AttentionCore:
    """The part of an attention that has no weights.

    Attributes:
        main: The first product, or the node that does all of it.
        nodes: All of it.
        products: Those that multiply.
        projections: Layers that feed it and share what they read.
    """

    main: ir.Node
    nodes: tuple[ir.Node, ...]
    products: tuple[ir.Node, ...]
    projections: tuple[tuple[ir.Node, ...], ...]


def cores(
    order: Iterable[ir.Node], layers: Mapping[ir.Node, Sequence[ir.Value]]
) -> list[AttentionCore]:
    """Return the attentions among nodes, in their order."""
    found: list[AttentionCore] = []
    taken: set[ir.Node] = set()
    for node in order:
        parts = _parts(node)
        if parts is None or taken.intersection(parts[0]):
            continue
        nodes, products = parts
        taken.update(nodes)
        found.append(AttentionCore(products[0], nodes, products, _projections(nodes, layers)))
    return found


def _parts(node: ir.Node) -> tuple[tuple[ir.Node, ...], tuple[ir.Node, ...]] | None:
    """Return the nodes of the attention around a softmax and its products; None of another."""
    if label(node) in _FUSED:
        return (node,), (node,)
    if label(node) != "Softmax" or node.inputs[0] is None:
        return None
    before, after = _up(node.inputs[0], 0), _down(node.outputs[0], 0)
    if before is None or after is None:
        return None
    return (*before[::-1], node, *after), (before[-1], after[-1])


def _up(value: ir.Value, depth: int) -> list[ir.Node] | None:
    """Return the way back to a product of two activations, nearest node first."""
    node = value.producer()
    if node is None or depth > _FAR:
        return None
    if _product(node):
        return [node]
    if label(node) not in _BETWEEN:
        return None
    ways = (_up(one, depth + 1) for one in node.inputs if one is not None)
    found = next((way for way in ways if way is not None), None)
    return None if found is None else [node, *found]


def _down(value: ir.Value, depth: int) -> list[ir.Node] | None:
    if depth > _FAR:
        return None
    for node in dict.fromkeys(node for node, _ in value.uses()):
        if _product(node):
            return [node]
        if label(node) in _BETWEEN:
            found = _down(node.outputs[0], depth + 1)
            if found is not None:
                return [node, *found]
    return None


def _product(node: ir.Node) -> bool:
    if label(node) not in ("MatMul", "Einsum", "com.microsoft::FusedMatMul"):
        return False
    factors = [value for value in node.inputs if value is not None]
    return len(factors) == 2 and all(edit.const_tensor(value) is None for value in factors)


def _projections(
    nodes: Collection[ir.Node], layers: Mapping[ir.Node, Sequence[ir.Value]]
) -> tuple[tuple[ir.Node, ...], ...]:
    """Return the layers that lead into an attention, those that read the same value together."""
    shared: dict[ir.Value, dict[ir.Node, None]] = {}
    values = [value for node in nodes for value in node.inputs if value is not None]
    for value in values:
        for layer in _leading(value, nodes, layers, 0):
            if (read := _read(layer)) is not None:
                shared.setdefault(read, {})[layer] = None
    return tuple(tuple(found) for found in shared.values() if len(found) > 1)


def _leading(
    value: ir.Value,
    nodes: Collection[ir.Node],
    layers: Mapping[ir.Node, Sequence[ir.Value]],
    depth: int,
) -> Iterator[ir.Node]:
    node = value.producer()
    if node is None or node in nodes or depth > _FAR:
        return
    if node in layers:
        if label(node) in ("MatMul", "Gemm"):
            yield node
    elif label(node) in _LEADING:
        for one in node.inputs:
            if one is not None:
                yield from _leading(one, nodes, layers, depth + 1)


def _read(layer: ir.Node) -> ir.Value | None:
    """Return what a projection reads, before it is only shaped."""
    value = layer.inputs[0]
    while value is not None and (node := value.producer()) is not None:
        if label(node) not in ("Identity", "Reshape", "Flatten"):
            break
        value = node.inputs[0]
    return value
