"""Shape inference node by node: onnx's rules, with shape arithmetic carried along by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from ortune.model.graph.edit import Graph, bodies, const_tensor
from ortune.model.graph.spec import dims, shape_of
from ortune.model.shapes.known_values import Item, Known, propagate
from ortune.model.shapes.named_dims import SAME_TYPE, by_name

MADE_UP = "unk__"
"""How names begin that onnx's inference makes up, and exporters leave in their files."""


def infer_graph(graph: Graph, opsets: Mapping[str, int], known: Known) -> None:
    """Fill in types and shapes of a graph's values, its bodies included, in order.

    What the file declares is kept; only gaps are filled. Values whose type cannot be known stay
    as they are. Integer tensors that are known in part are noted in `known`.
    """
    for node in graph:
        infer_node(node, opsets, known)


def infer_node(node: ir.Node, opsets: Mapping[str, int], known: Known) -> None:
    """Do the work of `infer_graph` for one node, whose inputs are done."""
    for body in bodies(node):
        infer_graph(body, opsets, known)
    _infer(node, opsets, known)
    _by_values(node, known, opsets.get("", 0))
    propagate(node, known, opsets.get("", 0))


def merge(value: ir.Value, shape: Sequence[Item]) -> None:
    """Fill the gaps of a value's shape; a number takes the place of a name, never of a number."""
    old = shape_of(value)
    if old is None:
        value.shape = ir.Shape(shape)
    elif len(old) == len(shape):
        merged = [_better(a, b) for a, b in zip(old, shape, strict=True)]
        if merged != list(old):
            value.shape = ir.Shape(merged)


def _better(old: Item, new: Item) -> Item:
    if isinstance(old, int) or new is None:
        return old
    return new if old is None or isinstance(new, int) or old.startswith(MADE_UP) else old


def _infer(node: ir.Node, opsets: Mapping[str, int], known: Known) -> None:
    if node.op_type == "If" and not node.domain:
        _merge_branches(node)
        return
    if any(True for _ in bodies(node)):
        return
    if node.op_type == "Constant" and not node.domain:
        tensor = const_tensor(node.outputs[0])
        if tensor is not None:
            node.outputs[0].type = ir.TensorType(tensor.dtype)
            node.outputs[0].shape = ir.Shape(tensor.shape.numpy())
        return
    types = _input_types(node)
    if types is None:
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 0), node.domain)
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.serde.serialize_node(node),
            types,
            _input_data(node, known),
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()],
        )
    except Exception:  # no schema, or inputs it does not like: onnx raises many kinds
        return
    for value in node.outputs:
        if value.name and value.name in found:
            _take(value, found[value.name])


def _take(value: ir.Value, proto: onnx.TypeProto) -> None:
    if proto.HasField("map_type"):
        return  # onnx_ir has no such type
    if value.type is None:
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
    shape = dims(ir.serde.deserialize_type_proto_for_shape(proto))
    if shape is not None:
        merge(value, shape)


def _input_types(node: ir.Node) -> dict[str, onnx.TypeProto] | None:
    types = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.type is None or not value.name:
            return None
        types[value.name] = ir.serde.serialize_value(value).type
    return types


def _input_data(node: ir.Node, known: Known) -> dict[str, onnx.TensorProto]:
    data = {}
    for value in node.inputs:
        array = known.array(value)
        if value is not None and value.name and array is not None and array.dtype != object:
            data[value.name] = ir.serde.serialize_tensor(ir.tensor(array))
    return data


def _merge_branches(node: ir.Node) -> None:
    branches = [body.outputs for body in bodies(node)]
    for value, *ends in zip(node.outputs, *branches, strict=False):
        kinds = {end.type for end in ends}
        shapes = [shape_of(end) for end in ends]
        if value.type is None and len(kinds) == 1:
            value.type = kinds.pop()
        ranks = {len(shape) for shape in shapes if shape is not None}
        if None not in shapes and len(ranks) == 1:
            columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
            merge(value, [c[0] if len(set(c)) == 1 else None for c in columns])


def _by_values(node: ir.Node, known: Known, opset: int) -> None:
    """Use shapes that are known by name, which onnx's own rules cannot take."""
    found = by_name(node, known, opset)
    if found is None:
        return
    value, source = node.outputs[0], node.inputs[0]
    if value.type is None and node.op_type in SAME_TYPE and source is not None and source.type:
        value.type = ir.TensorType(source.type.dtype)
    if value.type is not None:
        merge(value, found)
