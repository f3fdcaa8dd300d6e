"""Raise the version of the default domain, node by node."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter

from ortune.core.errors import BadModel, Refused, summarize_error
from ortune.graph.io import names
from ortune.graph.ir import edit
from ortune.graph.shapes.infer import infer_shapes

_SMALL = 4096
"""Elements of a constant that an adapter may want to look at: axes, pads, scales."""


def raise_to(model: ir.Model, version: int) -> int:
    """Rewrite the nodes whose operator has changed, set the version, return how many changed.

    Each such node is converted by onnx's own adapters in a model of its own, so weights, names,
    metadata and operators of other domains are not touched. Local functions are inlined first.

    Raises:
        BadModel: An operator has no way from its version to the new one.
        Refused: `version` is unknown.
    """
    old = model.opset_imports.get("", 0)
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise Refused(f"there is no opset {version}", fix=f"give at most {newest}")
    if old >= version or "" not in model.opset_imports:
        return 0
    edit.inline_functions(model)
    infer_shapes(model)
    count = 0
    for since, rewrite in _REWRITES.items():
        if old < since <= version:
            count += sum(rewrite(node) for node in list(edit.walk_nodes(model)))
    nodes = [node for node in edit.walk_nodes(model) if _needs_conversion(node, old, version)]
    parts = [isolate_node(node, f"n{index}") for index, node in enumerate(nodes)]
    converted = _convert_graphs(nodes, parts, old, version)
    for node, before, after in zip(nodes, parts, converted, strict=True):
        if len(after.node) != 1 or not _equals_unnamed(after.node[0], before.node[0]):
            splice_graph(node, ir.serde.deserialize_graph(after), before)
            count += 1
    # A mask that nothing reads may be of the type it has since opset 10, whatever is declared.
    for node in edit.walk_nodes(model):
        if node.op_type == "Dropout" and not node.domain:
            for mask in node.outputs[1:]:
                if not edit.is_read(mask):
                    mask.type = ir.TensorType(ir.DataType.BOOL)
    if old < 7 <= version:
        _spread_slopes(model, old, version)
    model.opset_imports[""] = version
    names.make_names_unique(model)
    return count


def _rewrite_resize(node: ir.Node) -> bool:
    """Make a Resize of opset 11 of an Upsample of opset 7 to 9, or of a Resize of opset 10.

    Those divide a coordinate by the scale ("asymmetric"), and their nearest neighbour is the one
    below, or above where the size shrinks. onnx's own adapter says neither. False where it cannot.
    """
    graph = node.graph
    if node.domain or graph is None or node.op_type not in ("Upsample", "Resize"):
        return False
    editor = edit.Editor(graph)
    if "scales" in node.attributes:
        listed = np.asarray(node.attributes["scales"].as_floats(), np.float32)
        scales = editor.add_constant(f"{node.name}_scales", listed)
    elif len(node.inputs) == 2 and node.inputs[1] is not None:
        scales = node.inputs[1]
    else:
        return False
    mode, factors = edit.read_attribute(node, "mode", "nearest"), edit.const_array(scales)
    if mode not in ("nearest", "linear", "bilinear"):
        return False
    attributes = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    if mode == "nearest":
        shrinks = factors is not None and bool((factors < 1).any())
        unknown = factors is None and node.op_type == "Resize"
        if unknown or (factors is not None and shrinks and bool((factors > 1).any())):
            return False
        attributes |= {"mode": mode, "nearest_mode": "ceil" if shrinks else "floor"}
    region = editor.add_constant(f"{node.name}_roi", np.zeros(0, np.float32))
    resized = ir.node("Resize", [node.inputs[0], region, scales], attributes, name=node.name)
    resized.metadata_props.update(node.metadata_props)
    resized.doc_string = node.doc_string
    resized.outputs[0].name = editor.reserve_name(f"{node.name}_resized")
    return edit.replace_node(node, resized)


def _flatten_hardmax(node: ir.Node) -> bool:
    """Let a Hardmax over all axes from `axis` on, as before opset 13, be over one axis.

    onnx has no adapter. False where it is over the last axis alone.
    """
    x, graph = node.inputs[0] if node.inputs else None, node.graph
    if node.domain or node.op_type != "Hardmax" or graph is None or x is None:
        return False
    axis = edit.read_attribute(node, "axis", 1)
    if axis == -1 or (x.shape is not None and axis == x.shape.rank() - 1):
        node.attributes["axis"] = ir.AttrInt64("axis", axis)
        return False
    editor = edit.Editor(graph)
    shape = editor.make_node("Shape", [x], name=f"{node.name}_shape")
    flat = editor.make_node("Flatten", [x], {"axis": axis}, name=f"{node.name}_flat")
    largest = editor.make_node("Hardmax", flat.outputs, {"axis": 1}, name=f"{node.name}_rows")
    inputs = [largest.outputs[0], shape.outputs[0]]
    last = editor.make_node("Reshape", inputs, name=node.name, like=node.outputs[0])
    for new in (shape, flat, largest, last):
        new.metadata_props.update(node.metadata_props)
        new.doc_string = node.doc_string
    return edit.replace_node(node, shape, flat, largest, last)


def _spread_groups(node: ir.Node) -> bool:
    """Give a GroupNormalization a scale and a bias a channel; before opset 21 it was one a group.

    onnx has no adapter.

    Raises:
        BadModel: The number of channels is not known.
    """
    graph = node.graph
    if node.domain or node.op_type != "GroupNormalization" or graph is None:
        return False
    groups, dims = edit.read_attribute(node, "num_groups", 1), edit.shape_of(node.inputs[0])
    channels = dims[1] if dims and len(dims) > 1 else None
    if not isinstance(channels, int):
        raise _no_way(node, 18, 21, "the number of its channels is not known")
    editor = edit.Editor(graph)
    last = editor.add_constant(f"{node.name}_last", np.array([1]))
    spread = editor.add_constant(f"{node.name}_spread", np.array([groups, channels // groups]))
    flat = editor.add_constant(f"{node.name}_flat", np.array([-1]))
    for index in (1, 2):
        column = editor.add_node(node, "Unsqueeze", [node.inputs[index], last])
        rows = editor.add_node(node, "Expand", [column, spread])
        node.replace_input_with(index, editor.add_node(node, "Reshape", [rows, flat]))
    return True


_REWRITES: Mapping[int, Callable[[ir.Node], bool]] = {
    11: _rewrite_resize,
    13: _flatten_hardmax,
    21: _spread_groups,
}
"""Opset in which an operator came to mean something else -> what onnx's adapters leave undone."""


def _spread_slopes(model: ir.Model, old: int, new: int) -> None:
    """A PRelu's slope of one axis was one a channel before opset 7; since it is broadcast."""
    editor = edit.Editor(model.graph)
    for node in edit.walk_nodes(model):
        if node.op_type != "PRelu" or node.domain or len(node.inputs) < 2:
            continue
        x, slope = node.inputs[:2]
        slopes = edit.const_array(slope)
        if slopes is None or slopes.ndim != 1 or slopes.size == 1 or x is None or slope is None:
            continue
        if x.shape is None:
            raise _no_way(node, old, new, "the rank of its input is not known")
        if x.shape.rank() > 2:
            spread = slopes.reshape(-1, *[1] * (x.shape.rank() - 2))
            node.replace_input_with(1, editor.add_constant(f"{slope.name}_spread", spread))


def _has_changed(op: str, old: int, new: int) -> bool:
    try:
        before, after = (onnx.defs.get_schema(op, v).since_version for v in (old, new))
    except onnx.defs.SchemaError:
        return True
    return before != after


def _needs_conversion(node: ir.Node, old: int, new: int) -> bool:
    if node.op_type == "Resize" and "coordinate_transformation_mode" in node.attributes:
        return False  # it says how since opset 11; all later versions only allow more
    if node.domain or not _has_changed(node.op_type, old, new):
        return False
    if any(a.type in _GRAPHS for a in node.attributes.values() if not a.is_ref()):
        if node.op_type == "Scan" and old < 9:
            raise _no_way(node, old, new, "its inputs had a batch axis")
        return False  # all later versions only allow more types
    return True


def _convert_graphs(
    nodes: Sequence[ir.Node], parts: Sequence[onnx.GraphProto], old: int, new: int
) -> list[onnx.GraphProto]:
    """Convert graphs of one node each: in one go, as the converter takes 10 ms to start."""
    together = onnx.GraphProto(name="all")
    for part in parts:
        together.MergeFrom(part)
    together.name = "all"
    try:
        whole = _convert_graph(together, old, new)
        makers = {name: i for i, node in enumerate(whole.node) for name in node.output if name}
        initializers = {tensor.name: tensor for tensor in whole.initializer}
        converted = []
        for part in parts:
            picked: set[int] = set()
            read: set[str] = set()
            todo = [value.name for value in part.output]
            while todo:
                name = todo.pop()
                read.add(name)
                index = makers.get(name)
                if index is not None and index not in picked:
                    picked.add(index)
                    todo += whole.node[index].input
            cut = onnx.GraphProto(name="one", input=part.input, output=part.output)
            cut.node.extend(whole.node[index] for index in sorted(picked))
            cut.initializer.extend(initializers[n] for n in sorted(read) if n in initializers)
            converted.append(cut)
        return converted
    except Exception:  # the converter raises what its C++ code happens to; see who is to blame
        for node, part in zip(nodes, parts, strict=True):
            try:
                _convert_graph(part, old, new)
            except Exception as error:
                raise _no_way(node, old, new, summarize_error(error)) from error
        raise


def _convert_graph(graph: onnx.GraphProto, old: int, new: int) -> onnx.GraphProto:
    model = onnx.ModelProto(ir_version=8, graph=graph)
    model.opset_import.add(domain="", version=old)
    result: onnx.GraphProto = version_converter.convert_version(model, new).graph
    return result


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _no_way(node: ir.Node, old: int, new: int, why: str) -> BadModel:
    return BadModel(
        f"{node.op_type} '{node.name}' has no way from opset {old} to {new}: {why}",
        fix="export the model with a newer opset",
    )


def isolate_node(node: ir.Node, stem: str) -> onnx.GraphProto:
    """Make a graph of one node, its values called ``STEM.i0``, ``STEM.o0`` and so on."""
    proto = ir.serde.serialize_node(node)
    inputs = {v: f"{stem}.i{k}" for k, v in enumerate(node.inputs) if v is not None}
    proto.name = stem
    proto.ClearField("input")
    proto.ClearField("output")
    proto.ClearField("metadata_props")
    proto.input.extend("" if value is None else inputs[value] for value in node.inputs)
    proto.output.extend(f"{stem}.o{k}" if v.name else "" for k, v in enumerate(node.outputs))
    graph = onnx.GraphProto(name="one", node=[proto])
    for value, name in inputs.items():
        graph.input.append(ir.serde.serialize_value(value, name=name))
        tensor = edit.const_tensor(value)
        if tensor is not None and tensor.size <= _SMALL and tensor.dtype != ir.DataType.STRING:
            initializer = ir.serde.serialize_tensor(tensor)
            initializer.name = name
            graph.initializer.append(initializer)
    for k, value in enumerate(node.outputs):
        if value.name:
            graph.output.append(ir.serde.serialize_value(value, name=f"{stem}.o{k}"))
    return graph


def _equals_unnamed(first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
    def plain(node: onnx.NodeProto) -> tuple[object, ...]:
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        return node.op_type, list(node.input), list(node.output), attributes

    return plain(first) == plain(second)


def splice_graph(node: ir.Node, small: ir.Graph, before: onnx.GraphProto) -> list[ir.Node]:
    """Put a graph in the place of a node, `before` of `isolate_node`; return its nodes."""
    graph = node.graph
    if graph is None:
        return []
    slots = zip(before.node[0].input, node.inputs, strict=True)
    actual = {name: value for name, value in slots if value is not None}
    graph_inputs = {str(value.name): value for value in small.inputs}
    for name, value in graph_inputs.items():
        value.replace_all_uses_with(actual[name], replace_graph_outputs=True)
    graph_outputs = list(small.outputs)
    small.outputs.clear()
    nodes = list(small)
    small.remove(nodes)
    editor = edit.Editor(graph)
    for name, value in list(small.initializers.items()):
        array = edit.const_array(value)
        if name not in graph_inputs and array is not None:
            value.replace_all_uses_with(editor.add_constant(f"{node.name}_{name}", array))
    for index, new in enumerate(nodes):
        new.name = node.name if index == len(nodes) - 1 else f"{node.name}_{new.op_type}"
        new.doc_string = node.doc_string
        new.metadata_props.update(node.metadata_props)
        for value in new.outputs:
            if value.name:
                value.name = editor.reserve_name(f"{new.name}_{value.name}")
    graph.insert_before(node, nodes)
    named = [value for value in node.outputs if value.name]
    for old, new_value in zip(named, graph_outputs, strict=True):
        new_value.type, new_value.shape = old.type, old.shape
        edit.redirect_uses(old, new_value)
    graph.remove(node, safe=True)
    return nodes
