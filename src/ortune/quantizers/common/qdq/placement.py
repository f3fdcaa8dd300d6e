"""Which layers become integer, and where pairs go so that runtimes fuse them into kernels.

A pair follows a tensor (before its readers), never an edge. Four kinds of tensor get one:

- what a layer multiplies with its weight;
- both factors of a product of two activations, where those are wanted (attention);
- what a convolution makes, after the Relu or Clip that the kernel absorbs: integer convolutions
  write integers, so every reader of such a tensor reads the rounded values;
- what a follower makes: an operator between two integer tensors that has an integer kernel itself
  or only moves values. It is taken only if a layer further down reads its integers.

Where convolutions may write float (OpenVINO), a tensor gets a pair for the layers and followers
that read it, and for nothing else: all other readers take the float values.

Which operators follow, `runtime_rules` lists; all others stay in float between a pair. Every graph
is placed by itself: a tensor that a body takes from outside has its pair inside too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core import wording
from ortune.core.observer import Ranges
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common import grid
from ortune.quantizers.common.layers import Layer, find_layers, has_bounded_values, is_last
from ortune.quantizers.common.nodes import match_nodes
from ortune.quantizers.common.qdq.runtime_rules import LAYERS, RULES, Target, Treatment, has_rule
from ortune.transforms.common.simplify.clamps import read_clamp

RECURRENT = ("LSTM", "GRU", "RNN")
QUANTIZED = "are quantized already"
_TWO_ACTIVATIONS = "multiply two activations"


@dataclass(frozen=True)
class Scope:
    """The answer of `select_scope`."""

    # To become integer, by graph: the main graph first, then bodies.
    layers: Mapping[ir.Graph, tuple[Layer, ...]]
    # Products of two activations that are to become integer too, by graph.
    products: Mapping[ir.Graph, tuple[ir.Node, ...]]
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
    attention: bool,
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
    products: dict[ir.Graph, tuple[ir.Node, ...]] = dict.fromkeys(graphs, ())
    if attention and "MatMul" in ops:
        for graph in graphs:
            products[graph] = tuple(
                node
                for node in graph
                if reasons.get(node) == _TWO_ACTIVATIONS and _has_float_factors(node)
                if node not in excluded and (not include or node in only)
            )
        for node in (node for part in products.values() for node in part):
            del reasons[node]
    return Scope(fit, products, excluded, reasons)


def _has_float_factors(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and all(
        value is not None
        and value.dtype in (None, ir.DataType.FLOAT)
        and edit.const_tensor(value) is None
        for value in node.inputs
    )


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
        return _TWO_ACTIVATIONS
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
    products: tuple[ir.Node, ...]  # of two activations that become integer
    # Tensor that gets a pair -> tensor whose range it takes, in graph order.
    tensors: dict[ir.Value, ir.Value]
    replaced: frozenset[ir.Value]  # those whose every reader takes the rounded values
    followers: frozenset[ir.Node]  # nodes between that become integer too
    # Tensors of float layers that a pair on either side would make integer.
    guarded: frozenset[ir.Value]

    @property
    def readers(self) -> frozenset[ir.Node]:
        """Nodes that compute with integers."""
        at_work = (*(layer.node for layer in self.layers), *self.products)
        return self.followers.union(at_work)


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
            graph,
            layers,
            scope.products[graph],
            through,
            usable,
            scope.excluded,
            float_outputs=float_outputs,
        )
        placements.append(placement)
        dropped = {layer.node for layer in layers}.union(scope.products[graph]) - placement.readers
        reason = "have no range: the data leaves them unused or zero"
        scope.reasons.update(dict.fromkeys(dropped, reason))
    return placements


def place_pairs(
    graph: ir.Graph,
    layers: Sequence[Layer],
    products: Sequence[ir.Node],
    through: Sequence[str],
    usable: Callable[[ir.Value], bool],
    excluded: frozenset[ir.Node],
    *,
    float_outputs: bool,
) -> Placement:
    """Choose the tensors that get a pair.

    Args:
        layers: Candidates; those with an unusable tensor are left out, and so of `products`.
        through: Operators that may be followers, but for the nodes `excluded`.
        float_outputs: Convolutions may write float, and do unless integers are read.
    """
    outputs = [find_integer_output(layer.node) for layer in layers if layer.convolves]
    conv_outputs = set(filter(usable, outputs))
    placed = [layer for layer in layers if usable(layer.x)]
    if not float_outputs:
        placed = [
            layer
            for layer in placed
            if not layer.convolves or find_integer_output(layer.node) in conv_outputs
        ]
    products = [node for node in products if all(map(usable, _list_values(node)))]
    factors = (value for node in products for value in _list_values(node))
    multiplied = [*(layer.x for layer in placed), *factors]
    conv_outputs &= {find_integer_output(layer.node) for layer in placed}
    at_work = {layer.node for layer in placed}.union(products)
    free = [n for n in graph if n not in at_work and n not in excluded and _can_follow(n, through)]
    integers = {*multiplied, *conv_outputs}
    source: dict[ir.Value, ir.Value] = {}
    reached: dict[ir.Node, list[ir.Value]] = {}
    for node in free:
        inputs = _list_values(node)
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
    needed, kept = set(multiplied), []
    for node in reversed(reached):
        if any(out in needed for out in reached[node]):
            kept.append(node)
            needed.update(_list_values(node))
    inner = {out for node in kept for out in reached[node]}
    read = {value for node in kept for value in _list_values(node)}
    whole = set() if float_outputs else conv_outputs | inner
    chosen = whole.union(multiplied, inner, read)
    captured = [value for value in multiplied if is_captured(value, graph)]
    tensors = {
        value: source[value] if value in inner and value in source else value
        for value in (*dict.fromkeys(captured), *_in_order(graph))
        if value in chosen
    }
    greedy = [node for node in graph if node.op_type in GREEDY and node not in at_work]
    guarded = {find_integer_output(node) for node in greedy if node.inputs[0] in whole}
    parts = (frozenset(whole), frozenset(kept), frozenset(guarded & chosen))
    return Placement(graph, tuple(placed), tuple(products), tensors, *parts)


def _list_values(node: ir.Node) -> list[ir.Value]:
    return [value for value in float_inputs(node) if value is not None]


def find_integer_output(node: ir.Node) -> ir.Value:
    """Return the tensor that carries the node's integers: behind the activation it absorbs."""
    value = node.outputs[0]
    reader = edit.only_reader(value)
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


def _can_join(
    node: ir.Node, inputs: Sequence[ir.Value], usable: Callable[[ir.Value], bool]
) -> bool:
    """Say whether every part of a Concat may have a pair of its own."""
    home = node.graph
    return isinstance(home, ir.Graph) and all(
        edit.const_tensor(value) is None and not is_captured(value, home) and usable(value)
        for value in inputs
    )


def _in_order(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs
