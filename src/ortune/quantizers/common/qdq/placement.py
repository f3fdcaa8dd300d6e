"""Where quantize / dequantize pairs go, so that a runtime fuses them into integer kernels.

A pair follows a tensor (before its readers), never an edge. Three kinds of tensor get one:

- what a layer multiplies with its weight;
- what a convolution makes, after the Relu or Clip that the kernel absorbs: integer convolutions
  write integers, so every reader of such a tensor reads the rounded values;
- what a follower makes: an operator between two integer tensors that has an integer kernel itself
  or only moves values. It is taken only if a layer further down reads its integers.

Where convolutions may write float (OpenVINO), a tensor gets a pair for the layers and followers
that read it, and for nothing else: all other readers take the float values.

Which operators follow, `runtime_rules` lists; all others stay in float between a pair. Every graph
is placed by itself: a tensor that a body takes from outside has its pair inside too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core.observer import Ranges
from ortune.graph.ir import edit
from ortune.graph.ir.uses import only_reader
from ortune.quantizers.common import grid
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.qdq.runtime_rules import RULES, Treatment
from ortune.quantizers.common.qdq.scope import Scope
from ortune.transforms.common.simplify.clamps import read_clamp

MOVES = frozenset(row.op for row in RULES if row.treatment is Treatment.MOVES)
"""Operators that only move values: the output takes the input's grid.

A linear Resize computes in float between its pairs, but the tensors around it stay integers.
"""

ABSORBED = ("Relu", "Clip")
"""Activations that a kernel does by its grid, which starts at zero as they do."""

OPSET = 13
"""Pairs are written from here on: bounds of a Clip are inputs."""

GREEDY = ("Conv", "ConvTranspose", "Gemm")
"""Layers that onnxruntime quantizes by itself, weights per tensor, between two pairs."""


@dataclass(frozen=True)
class Placement:
    """The answer of `place_pairs`."""

    graph: ir.Graph
    layers: tuple[Layer, ...]
    # Tensor that gets a pair -> tensor whose range it takes, in graph order.
    tensors: dict[ir.Value, ir.Value]
    replaced: frozenset[ir.Value]  # those whose every reader takes the rounded values
    followers: frozenset[ir.Node]  # nodes between that become integer too
    # Tensors of float layers that a pair on either side would make integer.
    guarded: frozenset[ir.Value]

    def list_range_tensors(self) -> list[ir.Value]:
        """Return the tensors whose ranges are needed."""
        return list(dict.fromkeys(self.tensors.values()))


def place_all(
    scope: Scope, through: Sequence[str], ranges: Ranges | None, *, float_outputs: bool
) -> list[Placement]:
    """Place the layers of every graph; note in the scope which ranges leave out.

    Args:
        scope: The layers wanted, by graph.
        through: Operators that may be followers.
        ranges: From calibration; None while they are not known, and then all are usable.
        float_outputs: Convolutions may write float, and do unless integers are read.
    """

    def usable(value: ir.Value) -> bool:
        if ranges is None:
            return True
        seen = next((ranges[str(v.name)] for v in trace_moves(value) if v.name in ranges), None)
        return seen is not None and grid.can_cover(seen)

    placements = []
    for graph, layers in scope.layers.items():
        placement = place_pairs(
            graph, layers, through, usable, scope.excluded, float_outputs=float_outputs
        )
        placements.append(placement)
        dropped = {layer.node for layer in layers} - {layer.node for layer in placement.layers}
        reason = "have no range: the data leaves them unused or zero"
        scope.reasons.update(dict.fromkeys(dropped, reason))
    return placements


def place_pairs(
    graph: ir.Graph,
    layers: Sequence[Layer],
    through: Sequence[str],
    usable: Callable[[ir.Value], bool],
    excluded: frozenset[ir.Node],
    *,
    float_outputs: bool,
) -> Placement:
    """Choose the tensors that get a pair.

    Args:
        layers: Candidates; those with an unusable tensor are left out.
        through: Operators that may be followers, but for the nodes `excluded`.
        float_outputs: Convolutions may write float, and do unless integers are read.
    """
    conv_outputs = {
        output
        for layer in layers
        if layer.convolves and usable(output := find_integer_output(layer.node))
    }
    placed = [
        layer
        for layer in layers
        if usable(layer.x)
        and (
            float_outputs or not layer.convolves or find_integer_output(layer.node) in conv_outputs
        )
    ]
    layer_inputs = {layer.x for layer in placed}
    conv_outputs &= {find_integer_output(layer.node) for layer in placed}
    at_work = {layer.node for layer in placed}
    free = [n for n in graph if n not in at_work and n not in excluded and _can_follow(n, through)]
    reached, source = _propagate_forward(free, layer_inputs | conv_outputs, usable)
    kept = _propagate_backward(reached, layer_inputs)
    inner = {out for node in kept for out in reached[node]}
    read = {value for node in kept for value in float_inputs(node) if value is not None}
    whole = set() if float_outputs else conv_outputs | inner
    chosen = layer_inputs | whole | inner | read
    captured = [layer.x for layer in placed if is_captured(layer.x, graph)]
    tensors = {
        value: source[value] if value in inner and value in source else value
        for value in (*dict.fromkeys(captured), *_in_order(graph))
        if value in chosen
    }
    guarded = {
        find_integer_output(node)
        for node in graph
        if node.op_type in GREEDY and node not in at_work and node.inputs[0] in whole
    }
    return Placement(
        graph,
        tuple(placed),
        tensors,
        frozenset(whole),
        frozenset(kept),
        frozenset(guarded & chosen),
    )


def find_integer_output(node: ir.Node) -> ir.Value:
    """Return the tensor that carries the node's integers: behind the activation it absorbs."""
    value = node.outputs[0]
    reader = only_reader(value)
    if reader is None or reader.domain or reader.graph is not node.graph:
        return value
    return reader.outputs[0] if is_absorbed(reader.outputs[0]) else value


def is_absorbed(value: ir.Value) -> bool:
    """Say whether a Relu or Clip makes a tensor, and cuts it off at zero."""
    node = value.producer()
    if node is None or node.op_type not in ABSORBED or node.domain:
        return False
    bounds = read_clamp(value, OPSET)
    return bounds is not None and bounds.low == 0 < bounds.high


def is_captured(value: ir.Value, graph: ir.Graph) -> bool:
    """Say whether a body that reads the tensor takes it from a graph around it."""
    node = value.producer()
    if node is not None:
        return node.graph is not graph
    return not any(value is graph_input for graph_input in graph.inputs)


def trace_moves(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the tensor and those it was moved from: any of them may carry the common range."""
    while True:
        yield value
        node = value.producer()
        if node is None or node.op_type not in MOVES or node.inputs[0] is None:
            return
        value = node.inputs[0]


def float_inputs(node: ir.Node) -> list[ir.Value | None]:
    """Return the inputs that carry values, leaving out shapes, axes and sizes."""
    return list(node.inputs[:1]) if node.op_type in MOVES else list(node.inputs)


def _can_follow(node: ir.Node, through: Sequence[str]) -> bool:
    """Say whether the operator, with these attributes, has an integer kernel."""
    match node.op_type:
        case op if op not in through or node.domain:
            return False
        case "MaxPool":
            return len(node.outputs) == 1 or not node.outputs[1].uses()
        case _:
            return True


def _propagate_forward(
    nodes: Iterable[ir.Node], start: set[ir.Value], usable: Callable[[ir.Value], bool]
) -> tuple[dict[ir.Node, list[ir.Value]], dict[ir.Value, ir.Value]]:
    """Find every node that integers can reach, with the tensors that would carry its results."""
    integers = set(start)
    source: dict[ir.Value, ir.Value] = {}
    reached: dict[ir.Node, list[ir.Value]] = {}
    for node in nodes:
        inputs = [value for value in float_inputs(node) if value is not None]
        ready = [value in integers for value in inputs]
        if not any(ready):
            continue
        if not all(ready) and not (node.op_type == "Concat" and _can_join(node, inputs, usable)):
            continue
        moves = node.op_type in MOVES
        outputs = list(node.outputs) if moves else [find_integer_output(node)]
        if moves:
            source |= {out: source.get(inputs[0], inputs[0]) for out in outputs}
        elif not all(map(usable, outputs)):
            continue
        reached[node] = outputs
        integers.update(outputs)
    return reached, source


def _can_join(
    node: ir.Node, inputs: Sequence[ir.Value], usable: Callable[[ir.Value], bool]
) -> bool:
    """Say whether every part of a Concat may have a pair of its own."""
    home = node.graph
    return isinstance(home, ir.Graph) and all(
        edit.const_tensor(value) is None and not is_captured(value, home) and usable(value)
        for value in inputs
    )


def _propagate_backward(
    reached: dict[ir.Node, list[ir.Value]], targets: set[ir.Value]
) -> list[ir.Node]:
    needed, kept = set(targets), []
    for node in reversed(reached):
        if any(out in needed for out in reached[node]):
            kept.append(node)
            needed.update(value for value in float_inputs(node) if value is not None)
    return kept


def _in_order(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs
