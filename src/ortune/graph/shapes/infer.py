"""Shape inference as a ladder; each rung fills the gaps that the ones before have left."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from ortune.core.errors import BadSettings, suggest_names
from ortune.graph.io.write import serialize_without_weights
from ortune.graph.ir import edit
from ortune.graph.shapes.known_values import Item, SymbolicValues, propagate_values
from ortune.graph.shapes.named_dims import SAME_TYPE, infer_named_shape

MADE_UP = "unk__"
"""How names begin that onnx's inference makes up, and exporters leave in their files."""

_BEYOND = 1 << 63


def infer_graph(graph: edit.Graph, opsets: Mapping[str, int], values: SymbolicValues) -> None:
    """Fill in types and shapes of a graph's values, its bodies included, in order.

    What the file declares is kept; only gaps are filled. Values whose type cannot be known stay
    as they are. Integer tensors that are known in part are noted in `values`.
    """
    for node in graph:
        infer_node(node, opsets, values)


def infer_node(node: ir.Node, opsets: Mapping[str, int], values: SymbolicValues) -> None:
    """Do the work of `infer_graph` for one node, whose inputs are done."""
    for body in edit.list_bodies(node):
        infer_graph(body, opsets, values)
    _infer_outputs(node, opsets, values)
    # Use shapes that are known by name, which onnx's own rules cannot take.
    shape = infer_named_shape(node, values, opsets.get("", 0))
    if shape is not None:
        value, source = node.outputs[0], node.inputs[0]
        if value.type is None and node.op_type in SAME_TYPE and source is not None and source.type:
            value.type = ir.TensorType(source.type.dtype)
        if value.type is not None:
            merge_shape(value, shape)
    propagate_values(node, values, opsets.get("", 0))


def merge_shape(value: ir.Value, shape: Sequence[Item]) -> None:
    """Fill the gaps of a value's shape; a number takes the place of a name, never of a number.

    A number that no dimension can be, below 0 or above 63 bits, is as good as none.
    """
    shape = [None if isinstance(dim, int) and not 0 <= dim < _BEYOND else dim for dim in shape]
    old = edit.shape_of(value)
    if old is None:
        value.shape = ir.Shape(shape)
    elif len(old) == len(shape):
        merged = [_choose_item(a, b) for a, b in zip(old, shape, strict=True)]
        if merged != list(old):
            value.shape = ir.Shape(merged)


def _choose_item(old: Item, new: Item) -> Item:
    if isinstance(old, int) or new is None:
        return old
    return new if old is None or isinstance(new, int) or old.startswith(MADE_UP) else old


def _infer_outputs(node: ir.Node, opsets: Mapping[str, int], values: SymbolicValues) -> None:
    if node.op_type == "If" and not node.domain:
        _merge_branches(node)
        return
    if any(True for _ in edit.list_bodies(node)):
        return
    if node.op_type == "Constant" and not node.domain:
        tensor = edit.const_tensor(node.outputs[0])
        if tensor is not None:
            node.outputs[0].type = ir.TensorType(tensor.dtype)
            node.outputs[0].shape = ir.Shape(tensor.shape.numpy())
        return
    types = _input_types(node)
    if types is None:
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 0), node.domain)
        output_types = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.serde.serialize_node(node),
            types,
            _input_data(node, values),
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()],
        )
    except Exception:  # no schema, or inputs it does not like: onnx raises many kinds
        return
    for value in node.outputs:
        if value.name and value.name in output_types:
            _apply_type(value, output_types[value.name])


def _apply_type(value: ir.Value, proto: onnx.TypeProto) -> None:
    if proto.HasField("map_type"):
        return  # onnx_ir has no such type
    if value.type is None:
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
    shape = edit.list_dims(ir.serde.deserialize_type_proto_for_shape(proto))
    if shape is not None:
        merge_shape(value, shape)


def _input_types(node: ir.Node) -> dict[str, onnx.TypeProto] | None:
    types = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.type is None or not value.name:
            return None
        types[value.name] = ir.serde.serialize_value(value).type
    return types


def _input_data(node: ir.Node, values: SymbolicValues) -> dict[str, onnx.TensorProto]:
    data = {}
    for value in node.inputs:
        array = values.read_array(value)
        if value is not None and value.name and array is not None and array.dtype != object:
            data[value.name] = ir.serde.serialize_tensor(ir.tensor(array))
    return data


def _merge_branches(node: ir.Node) -> None:
    branches = [body.outputs for body in edit.list_bodies(node)]
    for value, *ends in zip(node.outputs, *branches, strict=False):
        kinds = {end.type for end in ends}
        shapes = [edit.shape_of(end) for end in ends]
        if value.type is None and len(kinds) == 1:
            value.type = kinds.pop()
        ranks = {len(shape) for shape in shapes if shape is not None}
        if None not in shapes and len(ranks) == 1:
            columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
            merge_shape(value, [c[0] if len(set(c)) == 1 else None for c in columns])


Runtime: TypeAlias = Callable[[list[str]], Mapping[str, tuple[str, Sequence[int]]]]
"""Runs the model on a real input: names of values in, NumPy dtype name and shape of each out."""


def infer_shapes(model: ir.Model, *, runtime: Runtime | None = None) -> str:
    """Fill in the types and shapes of values in place and return the rung that did it.

    ``file``: everything was declared. ``symbolic``: node by node, with named dimensions carried
    through shape arithmetic. ``onnx``: onnx's inference over the whole model, Loop and Scan
    included. ``runtime``: seen in a run. The answer is the last rung that helped; ``none`` when
    gaps are left and no rung could fill one. What the file declares is never overwritten; ask
    `list_unknown_values` what is still missing.

    Args:
        runtime: Where the sizes of a run are filled in, only ranks are when an input is dynamic.
    """
    answer, gaps = "file", list_unknown_values(model)
    for name in ("symbolic", "onnx"):
        if not gaps:
            return answer
        if name == "symbolic":
            infer_graph(model.graph, model.opset_imports, SymbolicValues())
        else:
            _infer_by_onnx(model)
        gaps, before = list_unknown_values(model), gaps
        answer = name if len(gaps) < len(before) else answer
    if gaps and runtime is not None:
        shapes = [
            edit.shape_of(value) for value in model.graph.inputs if not value.is_initializer()
        ]
        fixed = all(s is not None and all(isinstance(d, int) for d in s) for s in shapes)
        results = runtime(gaps)
        for graph in edit.walk_graphs(model):
            for value in (value for node in graph for value in node.outputs):
                if not value.name or value.name not in results:
                    continue
                kind, shape = results[value.name]
                if value.type is None:
                    value.type = ir.TensorType(_parse_dtype(kind))
                merge_shape(value, list(shape) if fixed else [None] * len(shape))
        answer = "runtime" if len(list_unknown_values(model)) < len(gaps) else answer
    return "none" if answer == "file" and gaps else answer


def list_unknown_values(model: ir.Model) -> list[str]:
    """Return the names of the main graph's values whose type or rank is not known."""
    outputs = (value for node in model.graph for value in node.outputs if value.name)
    return [
        str(value.name)
        for value in (*model.graph.inputs, *outputs)
        if value.type is None or (isinstance(value.type, ir.TensorType) and value.shape is None)
    ]


def _infer_by_onnx(model: ir.Model) -> None:
    try:
        proto = onnx.shape_inference.infer_shapes(serialize_without_weights(model), data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return
    _adopt_types(model.graph, proto.graph)


def _adopt_types(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    """Take over what was inferred: names tie values together, the order of nodes their bodies."""
    types = {v.name: v.type for v in (*proto.value_info, *proto.output, *proto.input)}
    for node, other in zip(graph, proto.node, strict=True):
        for value in node.outputs:
            kind = types.get(value.name or "")
            if kind is None:
                continue
            if value.type is None:
                value.type = ir.serde.deserialize_type_proto_for_type(kind)
            shape = edit.list_dims(ir.serde.deserialize_type_proto_for_shape(kind))
            if shape is not None:
                # onnx makes up names such as unk__0, which mean nothing
                merge_shape(value, [None if str(d).startswith(MADE_UP) else d for d in shape])
        for attribute in other.attribute:
            if attribute.HasField("g"):
                _adopt_types(node.attributes[attribute.name].as_graph(), attribute.g)


def _parse_dtype(name: str) -> ir.DataType:
    if name in ("str", "object"):
        return ir.DataType.STRING
    return next(d for d in ir.DataType if d != ir.DataType.UNDEFINED and d.numpy().name == name)


def infer_copy(
    model: ir.Model, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[ir.Model, str]:
    """Return a copy without local functions, with all shapes that the ladder finds, and its rung.

    Args:
        model: Left as it is; the copy shares its weights.
        shapes: Input -> shape to take it at, in place of the dimensions that it is declared with.

    Raises:
        BadSettings: There is no such input, or it has another rank or fixed size.
    """
    copy = model.clone()
    edit.inline_functions(copy)
    if shapes:
        inputs = {str(value.name): value for value in copy.graph.inputs}
        for name, shape in shapes.items():
            if name not in inputs:
                raise BadSettings(
                    f"the model has no input '{name}'", fix=suggest_names(name, inputs)
                )
            declared = inputs[name].shape
            if declared is None:
                continue
            pairs = zip(declared, shape, strict=False)
            clash = any(isinstance(old, int) and old != new for old, new in pairs)
            if clash or len(declared) != len(shape):
                sides = "x".join(str(dim) if isinstance(dim, int) else "?" for dim in declared)
                raise BadSettings(
                    f"input '{name}' does not take the shape {'x'.join(map(str, shape))}",
                    fix=f"it is declared {sides}",
                )
        for node in edit.walk_nodes(copy):
            for value in node.outputs:
                value.shape = None
        for name, shape in shapes.items():
            inputs[name].shape = ir.Shape(shape)
    return copy, infer_shapes(copy)
