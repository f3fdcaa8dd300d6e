"""What a model and every node of it compute and move: FLOPs, bytes, FLOPs per byte."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.graph.ir import edit, match
from ortune.graph.parts.extract import list_read_values

_FREE_TEXT = (
    "Cast CastLike Compress Concat Constant ConstantOfShape DepthToSpace Dropout Expand "
    "Flatten Gather GatherElements GatherND Identity NonZero OneHot Pad Range Reshape "
    "ReverseSequence Scatter ScatterElements ScatterND SequenceAt SequenceConstruct "
    "SequenceEmpty SequenceInsert SequenceLength Shape Size Slice SpaceToDepth Split "
    "SplitToSequence Squeeze Tile Transpose Unsqueeze Optional OptionalGetElement "
    "OptionalHasElement StringNormalizer"
)
_FREE = frozenset(_FREE_TEXT.split())
"""Operators that move data and compute nothing."""


class _Unknown(Exception):
    """A shape that counts is missing."""


def count_flops(model: ir.Model) -> int | None:
    """Return 2 operations a multiply-add, 1 an element of every other computing operator's output.

    Dynamic dimensions count as 1. Of an If the dearer branch counts, of a Loop the body as often
    as it is known to run, else once, of a tree its levels. Calls of local functions count nothing:
    inline them first.

    Returns:
        None when the shape of an operator that multiplies matrices is not known.
    """
    try:
        return sum(_count_node(node) for node in model.graph)
    except _Unknown:
        return None


def node_flops(node: ir.Node) -> int | None:
    """Return a node's operations by `count_flops`; None when a shape that counts is not known."""
    try:
        return _count_node(node)
    except (_Unknown, IndexError):
        return None


def _count_graph(graph: edit.Graph) -> int:
    return sum(_count_node(node) for node in graph)


def _count_node(node: ir.Node) -> int:
    if not node.domain and node.op_type in _BODIES:
        return _BODIES[node.op_type](node)
    rule = _MULTIPLY.get(node.op_type)
    if rule is not None:
        return rule(node)
    if node.op_type in _FREE:
        return 0
    return sum(math.prod(shape) for v in node.outputs if (shape := _read_shape(v)) is not None)


def _read_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else 1 for dim in value.shape)


def _require_shape(value: ir.Value | None) -> tuple[int, ...]:
    shape = _read_shape(value)
    if shape is None:
        raise _Unknown
    return shape


def _require_input_shape(node: ir.Node, index: int) -> tuple[int, ...]:
    if index >= len(node.inputs) or node.inputs[index] is None:
        raise _Unknown
    return _require_shape(node.inputs[index])


def _make_conv_rule(weight: int) -> Callable[[ir.Node], int]:
    """Weights are [out, in / group, kernel...]."""
    return lambda node: (
        2
        * math.prod(_require_shape(node.outputs[0]))
        * math.prod(_require_input_shape(node, weight)[1:])
    )


def _count_conv_transpose(node: ir.Node) -> int:
    """Weights are [in, out / group, kernel...]; each input element meets all but the first."""
    return (
        2 * math.prod(_require_input_shape(node, 0)) * math.prod(_require_input_shape(node, 1)[1:])
    )


def _count_matmul(node: ir.Node) -> int:
    """The inner dimension is the left operand's last; the last but one where it is transposed.

    FusedMatMul may transpose it. Whether it does shows in the shapes, so that a kernel counts
    whose attributes are not known.
    """
    shape, out_shape = _require_input_shape(node, 0), _require_shape(node.outputs[0])
    deep = shape[-1] if shape else 1
    if node.op_type == "FusedMatMul" and len(shape) > 1 and len(out_shape) > 1 and out_shape[-2]:
        deep = shape[-1] * shape[-2] // out_shape[-2] or deep
    return 2 * math.prod(out_shape) * deep


def _count_gemm(node: ir.Node) -> int:
    deep = _require_input_shape(node, 0)[0 if edit.read_attribute(node, "transA", 0) else 1]
    return 2 * math.prod(_require_shape(node.outputs[0])) * deep


def _make_recurrent_rule(gates: int) -> Callable[[ir.Node], int]:
    """X is [time, batch, in], W [directions, gates * hidden, in], R [.., hidden] (or packed)."""

    def count(node: ir.Node) -> int:
        x, hidden = _require_input_shape(node, 0), edit.read_attribute(node, "hidden_size", None)
        hidden = int(hidden or _require_input_shape(node, 2)[-1])
        ways = 2 if edit.read_attribute(node, "direction", "forward") == "bidirectional" else 1
        return 2 * math.prod(x[:2]) * ways * gates * hidden * (x[-1] + hidden)

    return count


def _count_einsum(node: ir.Node) -> int:
    """Every combination of indices is one multiply-add for two operands, two for three, ..."""
    terms = edit.read_attribute(node, "equation", "").replace(" ", "").split("->")[0].split(",")
    if any("." in term for term in terms):
        raise _Unknown
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        for label, dim in zip(term, _require_input_shape(node, index), strict=False):
            sizes[label] = max(dim, sizes.get(label, 1))
    return 2 * math.prod(sizes.values()) * max(1, len(terms) - 1)


def _count_attention(node: ir.Node) -> int:
    """Scores and their product with V; the packed form multiplies its input by weights too.

    Shapes: ai.onnx Q [batch, (heads,) q, d], K [batch, (heads,) k, d]; com.microsoft Attention
    takes X [batch, length, in] and weights [in, 3 * hidden].
    """
    q = _require_input_shape(node, 0)
    if node.op_type == "Attention" and node.domain == "com.microsoft":
        weight = _require_input_shape(node, 1)
        hidden = weight[-1] // 3
        return 2 * math.prod(q) * weight[-1] + 4 * q[0] * q[1] * q[1] * hidden
    keys = _read_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    return 4 * math.prod(q) * (keys or q)[-2]


def _count_trees(node: ir.Node) -> int:
    """A comparison a level of each tree, as if trees were alike and balanced, and its addition."""
    roots = edit.read_attribute(node, "tree_roots", None)
    of_nodes = edit.read_attribute(node, "nodes_treeids", None)
    trees = len(set(of_nodes or ()) if roots is None else roots)
    splits = len(edit.read_attribute(node, "nodes_featureids", ()))
    rows = _require_input_shape(node, 0)[0]
    return rows * trees * (1 + math.ceil(math.log2(splits / trees + 1))) if trees else 0


def _count_loop(node: ir.Node) -> int:
    trips = edit.const_array(node.inputs[0])
    count = int(trips.reshape(-1)[0]) if trips is not None and trips.size == 1 else 1
    return min(max(count, 0), 1 << 20) * _count_graph(node.attributes["body"].as_graph())


def _count_scan(node: ir.Node) -> int:
    rows = edit.read_attribute(node, "num_scan_inputs", 0)
    shape = _read_shape(node.inputs[-1]) if rows else None
    axes = edit.read_attribute(node, "scan_input_axes", None)
    length = shape[axes[-1] if axes else 0] if shape else 1
    return length * _count_graph(node.attributes["body"].as_graph())


def _count_if(node: ir.Node) -> int:
    names = ("then_branch", "else_branch")
    return max(_count_graph(node.attributes[name].as_graph()) for name in names)


_BODIES: Mapping[str, Callable[[ir.Node], int]] = {
    "If": _count_if,
    "Loop": _count_loop,
    "Scan": _count_scan,
}

_CONVOLUTIONS = ("Conv", "FusedConv", "NhwcFusedConv", "ConvInteger", "DeformConv")
_PRODUCTS_TEXT = (
    "MatMul FusedMatMul FusedMatMulBias MatMulInteger QLinearMatMul MatMulNBits "
    "MatMulIntegerToFloat DynamicQuantizeMatMul"
)
_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_TREES = ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")
_MULTIPLY: Mapping[str, Callable[[ir.Node], int]] = {
    **dict.fromkeys(_CONVOLUTIONS, _make_conv_rule(1)),
    "QLinearConv": _make_conv_rule(3),
    "ConvTranspose": _count_conv_transpose,
    **dict.fromkeys(_PRODUCTS_TEXT.split(), _count_matmul),
    **dict.fromkeys(("Gemm", "FusedGemm", "QGemm"), _count_gemm),
    **dict.fromkeys(("LSTM", "DynamicQuantizeLSTM"), _make_recurrent_rule(4)),
    "GRU": _make_recurrent_rule(3),
    "RNN": _make_recurrent_rule(1),
    "Einsum": _count_einsum,
    **dict.fromkeys(_TREES, _count_trees),
    **dict.fromkeys(_ATTENTIONS, _count_attention),
}


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
    # By the rules of `count_flops`; None where a shape is missing. An If, Loop or
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
        match.qualify_operator(node),
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
