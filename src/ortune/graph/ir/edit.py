"""Read and edit an onnx_ir graph: constants, readers, shapes, new nodes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from ortune.core.facts import TensorSpec
from ortune.core.progress import time_limit
from ortune.core.wording import join_names

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
    attributes = list(node.attributes.values())
    if len(attributes) != 1 or attributes[0].is_ref() or attributes[0].name not in _DENSE:
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


def is_overridable(value: ir.Value | None) -> bool:
    """Say whether a constant is only the default of an input, which a caller may override."""
    value = follow_identities(value)
    return value is not None and value.is_graph_input() and value.is_initializer()


def read_fixed_array(value: ir.Value | None) -> NDArray[Any] | None:
    """Return a constant that no caller may override; None for anything else."""
    return None if is_overridable(value) else const_array(value)


def list_named_weights(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield initializers and Constant nodes of all graphs, by the name of their value."""
    return ((str(value.name), tensor) for value, tensor in list_weights(model))


def list_weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the values of initializers and Constant nodes of all graphs, with their tensors."""
    for graph in walk_graphs(model):
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield value, value.const_value
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                tensor = const_tensor(node.outputs[0])
                if tensor is not None:
                    yield node.outputs[0], tensor


def is_read(value: ir.Value) -> bool:
    """Say whether a node reads a value, or its graph puts it out."""
    return bool(value._uses) or value.is_graph_output()


def has_single_use(value: ir.Value) -> bool:
    """Say whether a value is read in one place only, by a node."""
    return len(value._uses) == 1 and not value.is_graph_output()


def list_readers(value: ir.Value, most: int) -> list[ir.Node]:
    """Return the first nodes that read a value, `most` of them; each stands once.

    `Value.uses` copies all: a weight with a hundred thousand readers once for each of them.
    """
    readers: dict[ir.Node, None] = {}
    for node, _ in value._uses:
        readers[node] = None
        if len(readers) == most:
            break
    return list(readers)


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, of whatever operator; None where there is none."""
    return next(iter(value.uses())).node if has_single_use(value) else None


def list_inputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the inputs a caller must give: those without a default in the model."""
    return tuple(describe_value(v) for v in model.graph.inputs if not v.is_initializer())


def list_outputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the outputs in file order."""
    return tuple(describe_value(value) for value in model.graph.outputs)


def describe_value(value: ir.Value) -> TensorSpec:
    """Describe a value; what is no tensor has a dtype such as ``seq(float32)`` and no shape."""
    return TensorSpec(value.name or "", type_name(value.type), list_dims(value.shape))


def list_dims(shape: ir.Shape | None) -> tuple[int | str | None, ...] | None:
    """Return a shape as plain values."""
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def shape_of(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """Return the shape of a value as plain values; None where there is none or it is unknown."""
    return None if value is None else list_dims(value.shape)


def type_name(kind: ir.TypeProtocol | None) -> str:
    """Return NumPy's name of a tensor's type; empty when it is unknown."""
    match kind:
        case None:
            return ""
        case ir.SequenceType():
            return f"seq({type_name(kind.elem_type)})"
        case ir.OptionalType():
            return f"optional({type_name(kind.elem_type)})"
        case ir.SparseTensorType():
            return f"sparse({dtype_name(kind.dtype)})"
        case _:
            return dtype_name(kind.dtype)


def dtype_name(dtype: ir.DataType) -> str:
    """Return NumPy's name (ml_dtypes' for what NumPy lacks); ``str`` for strings."""
    if dtype == ir.DataType.STRING:
        return "str"
    return "" if dtype == ir.DataType.UNDEFINED else str(dtype.numpy().name)


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
        like: ir.Value | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Node:
        """Create a named node; `insert_before` and its like put it into a graph.

        Args:
            name: Wanted name of the node and of its outputs; by default made from `op` and the
                first input.
            like: Value whose type and shape the first output has.
            dtype: Data type of the first output, whatever that of `like`.
        """
        first = next((value.name for value in inputs if value is not None), None)
        stem = name or f"{first or 'no_input'}_{op}"
        free = self._nodes.reserve_name(stem, bare=True)
        node = ir.node(op, inputs, attributes, domain=domain, num_outputs=outputs, name=free)
        for index, value in enumerate(node.outputs):
            value.name = self.reserve_name(stem if index == 0 else f"{stem}_{index}")
        if like is not None:
            node.outputs[0].type, node.outputs[0].shape = like.type, like.shape
        if dtype is not None:
            node.outputs[0].type = ir.TensorType(dtype)
        return node

    def add_node(
        self,
        at: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        name: str | None = None,
        like: ir.Value | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Place a node of `make_node` before `at` and return its only output."""
        node = self.make_node(op, inputs, attributes, name=name, like=like, dtype=dtype)
        insert_before(at, node)
        return node.outputs[0]


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


def redirect_uses(old: ir.Value, new: ir.Value) -> bool:
    """Let everything that reads `old` read `new`; say whether it could be done.

    An output of a graph keeps its name, type and declared shape: `new` takes them over. That can
    not be done when `new` is an input, a constant, an output already, or of another graph.
    """
    graph = old.graph
    if old.is_graph_output():
        node = new.producer()
        if node is None or graph is None or node.graph is not graph or new.is_graph_output():
            return False
        name, old.name = old.name, None
        new.name = name
        new.type = old.type or new.type
        new.shape = old.shape if old.shape is not None else new.shape
        new.metadata_props.update(old.metadata_props)
        new.doc_string = old.doc_string or new.doc_string
        # `replace_graph_outputs` would go through all outputs in Python, for each of them.
        graph.outputs[graph.outputs.index(old)] = new
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    return True


def remove_node(node: ir.Node) -> None:
    """Take a node that nothing reads out of its graph."""
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def detach_node(node: ir.Node) -> ir.Node:
    """Let a node that nothing reads read nothing either, and return it.

    Many are then taken out of a graph at once by `Graph.remove`, which goes through all outputs.
    """
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    return node


def replace_node(node: ir.Node, *replacements: ir.Node) -> bool:
    """Put new nodes in the place of one of a single output; say whether it could be done.

    The last one's first output takes over the type, shape and readers, as `redirect_uses` does.
    """
    old, new = node.outputs[0], replacements[-1].outputs[0]
    if node.graph is None:
        return False
    new.type, new.shape = old.type or new.type, old.shape
    node.graph.insert_before(node, replacements)
    done = redirect_uses(old, new)
    for obsolete in [node] if done else reversed(replacements):
        remove_node(obsolete)
    return done


def list_call_names(function: ir.Function) -> set[str]:
    """Return a local function's name, without its domain and with it (``domain::name``)."""
    return {function.name, f"{function.domain}::{function.name}"}


def inline_functions(model: ir.Model, only: Collection[str] = ()) -> int:
    """Replace calls of local functions by their bodies and return how many functions went.

    Functions of another opset than the model's, with graphs as attributes, or of which a call has
    another number of outputs, are left.

    Args:
        only: Names of functions, with or without their domain (``domain::name``); none means all.
    """

    if not model.functions:
        return 0
    tops: list[Graph] = [model.graph, *model.functions.values()]
    nodes = [node for top in tops for node in top.all_nodes()]
    misfits = {
        call
        for node in nodes
        if (call := node.op_identifier()) in model.functions
        and len(node.outputs) != len(model.functions[call].outputs)
    }

    def can_inline(function: ir.Function) -> bool:
        if function.identifier() in misfits:
            return False
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
        tops = [model.graph, *model.functions.values()]
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
