"""Divide a model into regions: a layer with what runtimes fuse with it, attention as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.match import label
from ortune.model.io import names
from ortune.model.shapes.infer import shaped
from ortune.regions.attention import AttentionCore, cores
from ortune.regions.patterns import pattern
from ortune.regions.weights import weights

By: TypeAlias = Literal["region", "node", "op"]

_FUSED = (
    "Add BatchNormalization Cast Clip Div Elu Erf Gelu HardSigmoid HardSwish Identity LeakyRelu "
    "Mish Mul PRelu Pow Relu Selu Sigmoid Softplus Softsign Sqrt Sub Swish Tanh ThresholdedRelu "
    "com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::Gelu "
    "com.microsoft::QuickGelu"
)
FUSED = frozenset(_FUSED.split())
"""Operators that go with the layer whose output alone they read, beside constants."""


@dataclass(frozen=True)
class Region:
    """Nodes that change precision together.

    Attributes:
        name: That of the layer with the most weights, the first of these; of an attention's
            products the first. Of a region of one operator: the operator.
        nodes: Names of all its nodes, in the graph's order.
        pattern: Digest of its structure; regions that share it take the same time.
        ops: Operators of its layers, in order.
        layers: Names of the nodes that multiply or look up, which is what quantizers choose by.
        bytes: Of its weights.
    """

    name: str
    nodes: tuple[str, ...]
    pattern: str
    ops: tuple[str, ...]
    layers: tuple[str, ...]
    bytes: int


def regions(model: ir.Model, by: By = "region") -> list[Region]:
    """Group the layers of a model, bodies included; every layer lies in exactly one region.

    Layers that share a weight are one region, whatever is asked: one cannot be switched without
    the other. Names are those that `names.unique` and inlining give, as a quantizer finds them.

    Args:
        model: Left as it is.
        by: ``region`` joins attention's projections that share an input, and takes its products
            and softmax as one; ``node`` is a layer each; ``op`` all layers of an operator.
    """
    named = model.clone()
    names.unique(named)
    copy, _ = shaped(named)
    names.unique(copy)
    order = {node: at for at, node in enumerate(edit.every_node(copy))}
    held = {node: found for node in order if (found := weights(node))}
    attention = cores(order, held) if by == "region" else []
    owner = _owners(held, attention, by)
    for core in attention:
        owner |= dict.fromkeys(core.nodes, core.main)
    _absorb(order, owner)
    groups: dict[ir.Node, list[ir.Node]] = defaultdict(list)
    for node in order:
        if node in owner:
            groups[owner[node]].append(node)
    products = {core.main: core.products for core in attention}
    version = copy.opset_imports.get("", 1)
    return [
        _region(nodes, held, products.get(main, ()), by, version) for main, nodes in groups.items()
    ]


def _owners(
    held: Mapping[ir.Node, Sequence[ir.Value]], attention: Iterable[AttentionCore], by: By
) -> dict[ir.Node, ir.Node]:
    """Return layer -> the first layer of its region."""
    alike: defaultdict[object, list[ir.Node]] = defaultdict(list)
    for node, values in held.items():
        for value in values:
            alike[value].append(node)
        if by == "op":
            alike[label(node)].append(node)
    for core in attention:
        for at, joined in enumerate(core.projections):
            alike[core.main, at] += joined
    owner = {node: node for node in held}

    def root(node: ir.Node) -> ir.Node:
        while owner[node] is not node:
            node = owner[node]
        return node

    place = {node: at for at, node in enumerate(held)}
    for group in alike.values():
        ends = sorted({root(node) for node in group}, key=place.__getitem__)
        owner |= dict.fromkeys(ends, ends[0])
    return {node: root(node) for node in held}


def _absorb(order: Iterable[ir.Node], owner: dict[ir.Node, ir.Node]) -> None:
    """Give a region what reads its values alone and does little: biases, activations."""
    for node in order:
        if node in owner or label(node) not in FUSED:
            continue
        makers = {v.producer() for v in node.inputs if v is not None and not _fixed(v)}
        found = {owner.get(maker) if maker is not None else None for maker in makers}
        if len(found) == 1 and (one := found.pop()) is not None:
            owner[node] = one


def _fixed(value: ir.Value) -> bool:
    return edit.const_tensor(value) is not None


def _region(
    nodes: Sequence[ir.Node],
    held: Mapping[ir.Node, Sequence[ir.Value]],
    products: Sequence[ir.Node],
    by: By,
    version: int,
) -> Region:
    layers = [node for node in nodes if node in held or node in products]
    sizes = {node: sum(_bytes(held.get(node, ()))) for node in layers}
    main = max(layers, key=sizes.__getitem__)
    every = dict.fromkeys(value for node in layers for value in held.get(node, ()))
    return Region(
        label(main) if by == "op" else str(main.name),
        tuple(str(node.name) for node in nodes),
        pattern(nodes, version),
        tuple(map(label, layers)),
        tuple(str(node.name) for node in layers),
        sum(_bytes(every)),
    )


def _bytes(values: Iterable[ir.Value]) -> Iterator[int]:
    for value in values:
        tensor = edit.const_tensor(value)
        yield 0 if tensor is None else tensor.nbytes
