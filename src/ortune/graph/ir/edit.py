"""Small edits of an onnx_ir graph: constants, new nodes, unique names, all graphs."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from ortune.core.progress import time_limit
from ortune.core.wording import join_names
from ortune.graph.ir.uses import is_read

Graph: TypeAlias = ir.Graph | ir.Function
Attributes: TypeAlias = Mapping[str, Any]

_NOTES = "ortune.notes"
_REFUSALS = "ortune.refusals"
_NAMED = 3
_LONGEST_CHAIN = 16
_DENSE = tuple(
    f"value{kind}" for kind in ("", "_float", "_floats", "_int", "_ints", "_string", "_strings")
)
"""Attributes of a Constant; what else one has is no value."""


def walk_graphs(model: ir.Model) -> Iterator[Graph]:
    """Yield the main graph, then functions, each followed by the bodies inside it."""
    yield model.graph
    yield from model.graph.subgraphs()
    for function in model.functions.values():
        yield function
        yield from function.subgraphs()


def walk_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield every node of every graph; safe while nodes are added or removed."""
    for graph in list(walk_graphs(model)):
        yield from list(graph)


def list_bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def const_array(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the array behind a value, or None when it is not constant.

    Initializers (those listed as inputs too), Constant nodes and Identity of either count, in
    whichever graph they live. The array may be a view of a mapped file: copy before writing.

    Raises:
        OutOfTime: The time of what is being built is up.
    """
    time_limit.check_time()
    tensor = const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def const_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Like `const_array`, without reading the data: shape, dtype and size only."""
    value = follow_identities(value)
    if value is None or (node := value.producer()) is None:
        return value.const_value if value is not None and value.is_initializer() else None
    if node.domain or node.op_type != "Constant":
        return None
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None or attribute.is_ref() or attribute.name not in _DENSE:
        return None
    return ir.convenience.get_const_tensor(value)


def follow_identities(value: ir.Value | None) -> ir.Value | None:
    """Return the value that a few Identity in a row hand on, be it the value itself.

    Behind `_LONGEST_CHAIN` of them it is the output of one that is returned: a chain is not walked
    to its start from each of its nodes.
    """
    for _ in range(_LONGEST_CHAIN):
        node = value.producer() if value is not None else None
        if node is None or node.op_type != "Identity" or node.domain or not node.inputs:
            break
        value = node.inputs[0]
    return value


def insert_before(at: ir.Node, *nodes: ir.Node) -> None:
    """Place new nodes directly before `at`, in its graph and in the order given."""
    _require_graph(at).insert_before(at, nodes)


def insert_after(at: ir.Node, *nodes: ir.Node) -> None:
    """Place new nodes directly after `at`, in its graph and in the order given."""
    _require_graph(at).insert_after(at, nodes)


def insert_first(graph: Graph, *nodes: ir.Node) -> None:
    """Place new nodes at the front of a graph: what reads only inputs and constants."""
    head = next(iter(graph), None)
    if head is None:
        graph.extend(nodes)
    else:
        graph.insert_before(head, nodes)


class NamesInUse:
    """Names in use; finding one of a thousand of the same stem takes no longer than the first."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._numbers: dict[str, int] = {}

    def reserve_name(self, stem: str, *, bare: bool) -> str:
        """Return `stem` itself when `bare` and free, else the first free ``stem_N`` from 2 on."""
        name, number = stem, self._numbers.get(stem, 1)
        while name in self._names or (number == 1 and not bare):
            number += 1
            name = f"{stem}_{number}"
        self._numbers[stem] = number
        self._names.add(name)
        return name


class Editor:
    """Adds constants and nodes under names that are free in the graph and all its bodies.

    The names in use are read once: build a fresh editor after others have changed the graph. An
    editor of the main graph may add to any body of it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._values = NamesInUse(_value_names(graph))
        self._nodes = NamesInUse(node.name for node in graph.all_nodes() if node.name)

    def reserve_name(self, stem: str) -> str:
        """Return `stem`, or `stem_2` and so on, and take it as a value name."""
        return self._values.reserve_name(stem, bare=True)

    def add_constant(self, name: str, array: NDArray[Any]) -> ir.Value:
        """Add a constant: an initializer, or a Constant node in front of a function's body.

        Bodies inside the graph see it too. The array is stored as it is, not copied; a number is
        appended to a name that another value has.
        """
        free = self.reserve_name(name)
        tensor = ir.tensor(array, name=free)
        if isinstance(self.graph, ir.Function):
            node_name = self._nodes.reserve_name(free, bare=True)
            node = ir.node("Constant", [], {"value": tensor}, name=node_name)
            output = node.outputs[0]
            output.name, output.shape, output.dtype = free, ir.Shape(array.shape), tensor.dtype
            insert_first(self.graph, node)
            return output
        value = ir.val(free, const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def make_node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        name: str | None = None,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Node:
        """Create a named node; `insert_before` and its like put it into a graph.

        Args:
            name: Wanted name of the node and of its outputs; by default made from `op` and the
                first input.
        """
        first = next((value.name for value in inputs if value is not None), None)
        stem = name or f"{first or 'no_input'}_{op}"
        free = self._nodes.reserve_name(stem, bare=True)
        node = ir.node(op, inputs, attributes, domain=domain, num_outputs=outputs, name=free)
        for index, value in enumerate(node.outputs):
            value.name = self.reserve_name(stem if index == 0 else f"{stem}_{index}")
        return node


def discard_constant(value: ir.Value | None) -> bool:
    """Remove a constant that nothing uses any more and say whether it went.

    Initializers leave the graph's inputs too; chains of Identity and Constant are followed.
    """
    count = 0
    while value is not None and not is_read(value) and (node := value.producer()) is not None:
        if node.domain or node.op_type not in ("Identity", "Constant"):
            break
        value = node.inputs[0] if node.inputs else None
        _require_graph(node).remove(node, safe=True)
        count += 1
    if value is None or is_read(value) or value.producer() is not None:
        return count > 0
    graph = value.graph
    if graph is None or not value.is_initializer() or value.name is None:
        return count > 0
    if value.is_graph_input():
        graph.inputs.remove(value)
    del graph.initializers[value.name]
    return True


def take_out(node: ir.Node) -> None:
    """Remove a node that nothing reads, and the constants that only it read."""
    parts = list(node.inputs)
    _require_graph(node).remove(node, safe=True)
    for part in parts:
        discard_constant(part)


def list_call_names(function: ir.Function) -> set[str]:
    """Return a local function's name, without its domain and with it (``domain::name``)."""
    return {function.name, f"{function.domain}::{function.name}"}


def inline_functions(model: ir.Model, only: Collection[str] = ()) -> int:
    """Replace calls of local functions by their bodies and return how many functions went.

    Functions of another opset than the model's, or with graphs as attributes, are left.

    Args:
        only: Names of functions, with or without their domain (``domain::name``); none means all.
    """

    def can_inline(function: ir.Function) -> bool:
        if only and list_call_names(function).isdisjoint(only):
            return False
        imports = model.opset_imports
        agree = all(imports.get(d, v) == v for d, v in function.opset_imports.items())
        kinds = {attribute.type for attribute in function.attributes.values()}
        return agree and not kinds & {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}

    before = len(model.functions)
    if any(map(can_inline, model.functions.values())):
        common.InlinePass(can_inline)(model)
        # The inliner does not look into bodies: make their value names differ from all others.
        seen: set[str] = set()
        tops: list[Graph] = [model.graph, *model.functions.values()]
        names = NamesInUse(name for top in tops for name in _value_names(top))
        for body in (model.graph, *model.graph.subgraphs()):
            outputs = [value for node in body for value in node.outputs]
            for value in dict.fromkeys((*body.inputs, *body.initializers.values(), *outputs)):
                if value.name in seen and value.name:
                    value.name = names.reserve_name(value.name, bare=False)
                elif value.name:
                    seen.add(value.name)
    return before - len(model.functions)


def add_note(model: ir.Model, text: str) -> None:
    """Leave a remark on what a step left alone; kept in memory only, never in the file."""
    model.meta.setdefault(_NOTES, []).append(text)


def note_refusal(model: ir.Model, node: ir.Node, why: str) -> None:
    """Say why a node is left alone; places are counted by the reason's words."""
    model.meta.setdefault(_REFUSALS, {}).setdefault(why, {})[node.name or node.op_type] = None


def take_notes(model: ir.Model) -> str:
    """Return the remarks and refusals since the last call, joined, and forget them."""
    remarks = list(dict.fromkeys(model.meta.pop(_NOTES, [])))
    for why, places in model.meta.pop(_REFUSALS, {}).items():
        remarks.append(f"{len(places)} left alone, {why}: {join_names(list(places), _NAMED)}")
    return "; ".join(remarks)


def read_attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return an attribute's plain value, or `default`; references count as absent."""
    attr = node.attributes.get(name)
    return default if attr is None or attr.is_ref() else attr.value


def _require_graph(node: ir.Node) -> ir.Graph:
    if node.graph is None:
        raise ValueError(f"node '{node.name}' is in no graph")
    return node.graph


def _value_names(graph: Graph) -> Iterable[str]:
    bodies = [graph, *graph.subgraphs()]
    for body in bodies:
        yield from (value.name for value in body.inputs if value.name)
        if isinstance(body, ir.Graph):
            yield from body.initializers
        for node in body:
            yield from (value.name for value in node.outputs if value.name)
