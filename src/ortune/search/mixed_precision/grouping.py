"""Divide a model into regions: a layer with what runtimes fuse with it, and who reads whom."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import onnx_ir as ir

from ortune.core.plugins import codec
from ortune.graph.diff.graphs import format_attributes
from ortune.graph.io import names
from ortune.graph.ir import edit
from ortune.graph.ir.edit import shape_of
from ortune.graph.ir.match import qualify_operator
from ortune.graph.shapes.infer import infer_copy
from ortune.quantizers.common.layers import PUTS_TOGETHER

By: TypeAlias = Literal["region", "node", "op"]

WEIGHTS = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "MatMul": (1,),
    "Gemm": (1,),
    "Gather": (0,),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
    "com.microsoft::Attention": (1,),
    "com.microsoft::EmbedLayerNormalization": (2, 3, 4),
    "com.microsoft::FusedConv": (1,),
    "com.microsoft::FusedGemm": (1,),
    "com.microsoft::FusedMatMul": (1,),
    "com.microsoft::NhwcFusedConv": (1,),
}
"""Operator of a layer -> inputs that are its weights."""
_FUSED = (
    "Add BatchNormalization Cast Clip Div Elu Erf Gelu HardSigmoid HardSwish Identity LeakyRelu "
    "Mish Mul PRelu Pow Relu Selu Sigmoid Softplus Softsign Sqrt Sub Swish Tanh ThresholdedRelu "
    "com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::Gelu "
    "com.microsoft::QuickGelu"
)
FUSED = frozenset(_FUSED.split())
"""Operators that go with the layer whose output alone they read, beside constants."""
_MOVED = "Flatten Identity MaxPool Pad Reshape Slice Split Squeeze Transpose Unsqueeze"
_MOVES = frozenset(_MOVED.split())  # operators behind which values are the same ones
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class PrecisionRegion:
    """Nodes that change precision together.

    Attributes:
        name: That of the layer with the most weights, the first of these. Of a region of one
            operator: the operator.
        pattern: Digest of its structure; regions that share it take the same time.
        layers: Names of the nodes that multiply or look up, which is what quantizers choose by.
    """

    name: str
    nodes: tuple[str, ...]
    pattern: str
    ops: tuple[str, ...]
    layers: tuple[str, ...]
    bytes: int


def find_regions(model: ir.Model, by: By = "region") -> list[PrecisionRegion]:
    """Group the layers of a model, bodies included; every layer lies in exactly one region.

    Layers that share a weight are one region, whatever is asked: one cannot be switched without
    the other. Names are those that `names.unique` and inlining give, as a quantizer finds them.

    Args:
        model: Left as it is.
        by: ``region`` joins products that read the same value, such as the projections of an
            attention: it is rounded for all of them; ``node`` is a layer each; ``op`` all layers
            of an operator.
    """
    copy = model.clone()
    names.make_names_unique(copy)
    copy, _ = infer_copy(copy)
    names.make_names_unique(copy)
    order = list(edit.walk_nodes(copy))
    layers = {node: constants for node in order if (constants := find_weights(node))}
    owner = _find_owners(layers, by)
    for node in order:  # biases, activations: what reads a region's values alone and does little
        if node in owner or qualify_operator(node) not in FUSED:
            continue
        inputs = [v for v in node.inputs if v is not None and edit.const_tensor(v) is None]
        makers = {value.producer() for value in inputs}
        owners = {None if maker is None else owner.get(maker) for maker in makers}
        if len(owners) == 1 and (main := owners.pop()) is not None:
            owner[node] = main
    groups: dict[ir.Node, list[ir.Node]] = defaultdict(list)
    for node in order:
        if node in owner:
            groups[owner[node]].append(node)
    version = copy.opset_imports.get("", 1)
    regions = []
    for nodes in groups.values():
        inside = [node for node in nodes if node in layers]
        main = max(inside, key=lambda node: sum(map(_tensor_bytes, layers[node])))
        weights = dict.fromkeys(value for node in inside for value in layers[node])
        regions.append(
            PrecisionRegion(
                name=qualify_operator(main) if by == "op" else str(main.name),
                nodes=tuple(str(node.name) for node in nodes),
                pattern=digest_pattern(nodes, version),
                ops=tuple(map(qualify_operator, inside)),
                layers=tuple(str(node.name) for node in inside),
                bytes=sum(map(_tensor_bytes, weights)),
            )
        )
    return regions


def _find_owners(layers: Mapping[ir.Node, Sequence[ir.Value]], by: By) -> dict[ir.Node, ir.Node]:
    """Return layer -> the first layer of its region."""
    alike: defaultdict[object, list[ir.Node]] = defaultdict(list)
    for node, constants in layers.items():
        for value in constants:
            alike["weight", value].append(node)
        if by == "op":
            alike[qualify_operator(node)].append(node)
        if by == "region" and qualify_operator(node) in ("MatMul", "Gemm"):
            read = node.inputs[0]  # what it reads, before that is only shaped
            while read is not None and (maker := read.producer()) is not None:
                if qualify_operator(maker) not in ("Identity", "Reshape", "Flatten"):
                    break
                read = maker.inputs[0]
            alike["input", read].append(node)
    owner = {node: node for node in layers}

    def root(node: ir.Node) -> ir.Node:
        while owner[node] is not node:
            node = owner[node]
        return node

    place = {node: at for at, node in enumerate(layers)}
    for group in alike.values():
        ends = sorted({root(node) for node in group}, key=place.__getitem__)
        owner |= dict.fromkeys(ends, ends[0])
    return {node: root(node) for node in layers}


def _tensor_bytes(value: ir.Value) -> int:
    tensor = edit.const_tensor(value)
    return 0 if tensor is None else tensor.nbytes


def digest_pattern(nodes: Sequence[ir.Node], opset: int) -> str:
    """Digest operators, attributes, inner edges, and shapes of constants and of what comes in.

    Sizes of what comes in count where all but the first are known: a convolution takes longer on a
    larger picture.
    """
    inner = {
        value: f"{at}.{index}"
        for at, node in enumerate(nodes)
        for index, value in enumerate(node.outputs)
    }
    outer: dict[ir.Value, str] = {}

    def describe(value: ir.Value | None) -> str:
        if value is None:
            return "-"
        if value in inner:
            return inner[value]
        tensor = edit.const_tensor(value)
        if tensor is not None:
            return f"{tensor.dtype.name} {list(tensor.shape.numpy())}"
        shape = shape_of(value)
        fixed = shape is not None and len(shape) > 1 and all(type(d) is int for d in shape[1:])
        size = str(list(shape[1:])) if fixed and shape is not None else "?"
        return outer.setdefault(value, f"in {len(outer)} {size}")

    return codec.digest(
        [
            [
                qualify_operator(n),
                format_attributes(n, opset),
                [describe(value) for value in n.inputs],
            ]
            for n in nodes
        ]
    )


def find_weights(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the constant float matrices behind a layer's weights; none where it is no layer.

    A weight that the graph turns over or puts together from constants counts by its parts: a table
    that is looked up and, transposed, multiplied too is one weight.
    """
    op = qualify_operator(node)
    if op not in WEIGHTS or (op == "Gather" and edit.read_attribute(node, "axis", 0)):
        return ()
    matrices: list[ir.Value] = []
    for place in WEIGHTS[op]:
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is None:
            continue
        parts = list(_list_constants(value))
        if None in parts:
            return ()
        for part in filter(None, parts):
            tensor = edit.const_tensor(part)
            if tensor is not None and tensor.dtype in _FLOATS and len(tensor.shape) >= 2:
                matrices += [part] * bool(tensor.size)
    return tuple(dict.fromkeys(matrices))


def _list_constants(value: ir.Value) -> Iterator[ir.Value | None]:
    """Yield the constants that a value is put together from; None where it depends on more."""
    node = value.producer()
    if edit.const_tensor(value) is not None:
        while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
            value = node.inputs[0]
            node = value.producer()
        yield value
    elif node is None or node.domain or node.op_type not in PUTS_TOGETHER:
        yield None
    else:
        for part in node.inputs:
            if part is not None:
                yield from _list_constants(part)


def find_neighbours(
    model: ir.Model, regions: Sequence[PrecisionRegion]
) -> tuple[tuple[str, str], ...]:
    """Return pairs of regions of which one reads what the other makes, in the regions' order."""
    owner = {name: region.name for region in regions for name in region.nodes}
    readers: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for node in model.graph:
        maker = owner.get(str(node.name))
        if maker is not None:
            readers[maker] |= dict.fromkeys(_list_readers(node, owner))
    return tuple(
        (region.name, other)
        for region in regions
        for other in readers[region.name]
        if other != region.name
    )


def _list_readers(node: ir.Node, owner: dict[str, str]) -> Iterator[str]:
    """Yield the regions that read a node's outputs, moved or not."""
    for value in node.outputs:
        for reader, _ in value.uses():
            if (region := owner.get(str(reader.name))) is not None:
                yield region
            elif qualify_operator(reader) in _MOVES:
                yield from _list_readers(reader, owner)
