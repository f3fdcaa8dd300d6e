"""What every node of a model computes and moves: FLOPs, bytes, and FLOPs per byte."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.graph.analysis.flops import node_flops
from ortune.graph.ir import edit
from ortune.graph.ir.match import qualify_operator
from ortune.graph.parts.extract import list_read_values

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size"})
"""Operators that change what is known of a tensor, or look at its shape: no data are moved."""
_PICKS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress"})
"""Operators that read what they write, and no more of their first input."""


@dataclass(frozen=True)
class Account:
    """One node in one call."""

    name: str
    op: str  # its operator, other domains as ``com.microsoft::Gelu``
    region: str  # the part of the model that it is in; empty where not asked for
    parent: str  # the If, Loop or Scan whose body it is in; empty on top
    dtype: str  # of its first output
    shape: tuple[int | str | None, ...] | None  # of its first output; None where it is not known
    # By the rules of `ortune.graph.analysis.flops`; None where a shape is missing. An If, Loop or
    # Scan counts nothing itself: the nodes of its bodies do, once.
    flops: int | None
    weights: int  # bytes of its constants, as they are stored
    read: int | None  # bytes that it reads, constants included; None where a shape is missing
    written: int | None  # bytes that it writes; None where a shape is missing

    @property
    def moved(self) -> int | None:
        """Bytes read and written."""
        if self.read is None or self.written is None:
            return None
        return self.read + self.written

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte moved; None where one is not known or nothing moves."""
        return compute_intensity(self.flops, self.moved)


@dataclass(frozen=True)
class Sum:
    """The nodes of a part of the model together."""

    name: str
    nodes: int
    flops: int  # of those that are known
    weights: int  # bytes of constants, each counted once
    moved: int  # bytes read and written, of those nodes where they are known
    unknown: int  # nodes whose FLOPs or bytes are not known

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte moved."""
        return compute_intensity(self.flops, self.moved)


def compute_intensity(flops: int | None, moved: int | None) -> float | None:
    """Return FLOPs per byte, None where one of them is not known or nothing moves."""
    return flops / moved if flops is not None and moved else None


def list_accounts(model: ir.Model, regions: Mapping[str, str] | None = None) -> list[Account]:
    """Describe every node but constants, in the order of the file, bodies behind their node.

    Dynamic dimensions count as 1. Every operator is taken to read its inputs and write its
    outputs once, in memory; what only reinterprets moves nothing, and what picks elements reads
    as much as it writes.

    Args:
        model: With shapes, as `infer_shapes` finds them, and without local functions.
        regions: Node -> its region.
    """
    parents = {
        b: str(n.name) for g in edit.walk_graphs(model) for n in g for b in edit.list_bodies(n)
    }
    nodes = [n for n in model.graph.all_nodes() if n.op_type != "Constant" or n.domain]
    return [_describe_node(n, (regions or {}).get(str(n.name), ""), parents) for n in nodes]


def sum_by_region(model: ir.Model, accounts: Iterable[Account]) -> list[Sum]:
    """Add accounts up by region, in the order of their first nodes."""
    groups: dict[str, list[Account]] = {}
    for account in accounts:
        groups.setdefault(account.region, []).append(account)
    nodes = {str(node.name): node for node in model.graph.all_nodes()}
    return [
        Sum(
            name,
            len(members),
            sum(account.flops or 0 for account in members),
            sum(
                {id(t): t.nbytes for m in members for t in _list_constants(nodes[m.name])}.values()
            ),
            sum(account.moved or 0 for account in members),
            sum(account.flops is None or account.moved is None for account in members),
        )
        for name, members in groups.items()
    ]


def value_bytes(value: ir.Value) -> int | None:
    """Return the bytes of a tensor whose dynamic dimensions are 1, None when not known."""
    if value.shape is None or not isinstance(value.type, ir.TensorType):
        return None
    if value.type.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    sides = (dim if isinstance(dim, int) else 1 for dim in value.shape)
    return math.ceil(math.prod(sides) * value.type.dtype.itemsize)


def _describe_node(node: ir.Node, region: str, parents: Mapping[ir.Graph, str]) -> Account:
    control = any(True for _ in edit.list_bodies(node))
    first = next((value for value in node.outputs if value.name), None)
    graph = node.graph if isinstance(node.graph, ir.Graph) else None
    read, written = (0, 0) if control else _measure_traffic(node)
    return Account(
        str(node.name),
        qualify_operator(node),
        region,
        parents.get(graph, "") if graph is not None else "",
        edit.type_name(first.type) if first is not None else "",
        edit.shape_of(first),
        0 if control else node_flops(node),
        sum(tensor.nbytes for tensor in _list_constants(node)),
        read,
        written,
    )


def _list_constants(node: ir.Node) -> Iterator[ir.TensorProtocol]:
    for value in dict.fromkeys(node.inputs):
        if (tensor := edit.const_tensor(value)) is not None:
            yield tensor


def _measure_traffic(node: ir.Node) -> tuple[int | None, int | None]:
    if not node.domain and node.op_type in _VIEWS:
        return 0, 0
    outputs = [v for v in node.outputs if edit.is_read(v)] or node.outputs[:1]
    written = _sum_sizes([value_bytes(value) for value in outputs])
    read: list[int | None] = []
    for value in dict.fromkeys(node.inputs):
        if value is None:
            continue
        tensor = edit.const_tensor(value)
        size = tensor.nbytes if tensor is not None else value_bytes(value)
        picked = not node.domain and node.op_type in _PICKS and value is node.inputs[0]
        if size is None or written is None or not picked:
            read.append(size)
        else:
            read.append(min(size, written))
    return _sum_sizes(read), written


def _sum_sizes(sizes: Sequence[int | None]) -> int | None:
    definite = [size for size in sizes if size is not None]
    return sum(definite) if len(definite) == len(sizes) else None


_NAMED = 3


@dataclass(frozen=True)
class LargeTensor:
    """A weight or an activation."""

    kind: str  # ``weight`` or ``activation``
    name: str
    dtype: str
    shape: tuple[int | str | None, ...]  # as it is declared or inferred
    size: int  # bytes; dynamic dimensions count as 1
    readers: int  # nodes that read it
    read_by: tuple[str, ...]  # the first three of them


@dataclass(frozen=True)
class Body:
    """A graph inside a node; `captured`: values of the graphs around it that it reads."""

    node: str
    op: str
    attribute: str
    nodes: int
    captured: int


@dataclass(frozen=True)
class LocalFunction:
    """A function that the model brings along, as ``domain::name``."""

    name: str
    nodes: int
    calls: int


def list_large_tensors(model: ir.Model, shaped: ir.Model, count: int) -> list[LargeTensor]:
    """Return the `count` biggest weights, then activations; `shaped` is the model with shapes."""
    readers: dict[str, list[str]] = {}
    for graph in edit.walk_graphs(model):
        for node in graph:
            for value in dict.fromkeys(v for v in node.inputs if v is not None and v.name):
                readers.setdefault(str(value.name), []).append(str(node.name))

    def make_tensor(
        kind: str, name: str, dtype: str, shape: tuple[int | str | None, ...], size: int
    ) -> LargeTensor:
        reader_names = readers.get(name, [])
        return LargeTensor(
            kind, name, dtype, shape, size, len(reader_names), tuple(reader_names[:_NAMED])
        )

    weights = [
        make_tensor("weight", name, edit.dtype_name(t.dtype), tuple(t.shape.numpy()), t.nbytes)
        for name, t in edit.list_named_weights(model)
    ]
    values = (v for node in shaped.graph.all_nodes() for v in node.outputs if v.name)
    active = [
        make_tensor(
            "activation", str(v.name), edit.type_name(v.type), edit.shape_of(v) or (), size
        )
        for v in values
        if v.const_value is None and (size := value_bytes(v)) is not None
    ]
    return [*_select_largest(weights, count), *_select_largest(active, count)]


def local_bodies(model: ir.Model) -> Iterator[Body]:
    """Yield the bodies of If, Loop and Scan, in the order of the file."""
    for node in model.graph.all_nodes():
        inputs = {value for value in node.inputs if value is not None}
        captured = len({value for value in list_read_values(node) if value not in inputs})
        for name, attribute in node.attributes.items():
            if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
                body = attribute.as_graph()
                yield Body(str(node.name), node.op_type, name, len(body), captured)


def local_functions(model: ir.Model) -> Iterator[LocalFunction]:
    """Yield the functions that the file defines."""
    calls = Counter((n.domain, n.op_type) for graph in edit.walk_graphs(model) for n in graph)
    for function in model.functions.values():
        name = f"{function.domain}::{function.name}"
        yield LocalFunction(name, len(function), calls[function.domain, function.name])


def _select_largest(tensors: list[LargeTensor], count: int) -> list[LargeTensor]:
    return sorted(tensors, key=lambda tensor: -tensor.size)[:count]
