"""Floating-point operations of one run, from shapes."""

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from ortune.graph.ir.edit import Graph, const_array, read_attribute

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


def _count_graph(graph: Graph) -> int:
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
    deep = _require_input_shape(node, 0)[0 if read_attribute(node, "transA", 0) else 1]
    return 2 * math.prod(_require_shape(node.outputs[0])) * deep


def _make_recurrent_rule(gates: int) -> Callable[[ir.Node], int]:
    """X is [time, batch, in], W [directions, gates * hidden, in], R [.., hidden] (or packed)."""

    def count(node: ir.Node) -> int:
        x, hidden = _require_input_shape(node, 0), read_attribute(node, "hidden_size", None)
        hidden = int(hidden or _require_input_shape(node, 2)[-1])
        ways = 2 if read_attribute(node, "direction", "forward") == "bidirectional" else 1
        return 2 * math.prod(x[:2]) * ways * gates * hidden * (x[-1] + hidden)

    return count


def _count_einsum(node: ir.Node) -> int:
    """Every combination of indices is one multiply-add for two operands, two for three, ..."""
    terms = read_attribute(node, "equation", "").replace(" ", "").split("->")[0].split(",")
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
    roots = read_attribute(node, "tree_roots", None)
    of_nodes = read_attribute(node, "nodes_treeids", None)
    trees = len(set(of_nodes or ()) if roots is None else roots)
    splits = len(read_attribute(node, "nodes_featureids", ()))
    rows = _require_input_shape(node, 0)[0]
    return rows * trees * (1 + math.ceil(math.log2(splits / trees + 1))) if trees else 0


def _count_loop(node: ir.Node) -> int:
    trips = const_array(node.inputs[0])
    count = int(trips.reshape(-1)[0]) if trips is not None and trips.size == 1 else 1
    return min(max(count, 0), 1 << 20) * _count_graph(node.attributes["body"].as_graph())


def _count_scan(node: ir.Node) -> int:
    rows = read_attribute(node, "num_scan_inputs", 0)
    shape = _read_shape(node.inputs[-1]) if rows else None
    axes = read_attribute(node, "scan_input_axes", None)
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
