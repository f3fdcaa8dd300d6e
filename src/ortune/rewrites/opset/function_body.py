"""The body that the standard gives an operator, as nodes in the place of one that uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from ortune.model.graph.edit import Editor
from ortune.model.graph.uses import is_read


def body_of(
    node: ir.Node, opset: int, wanted: int, editor: Editor
) -> tuple[list[ir.Node], int] | None:
    """Return new nodes, the last of which make the node's outputs, and the opset they are of.

    They end with Identity nodes, one an output. None where the standard has no body, or none for
    how the node is used.

    Args:
        node: Of the default domain.
        opset: Of the node.
        wanted: Opset that is aimed at: of several bodies the nearest is taken.
        editor: Names the nodes.
    """
    found = _function(node, opset, wanted)
    if found is None or not _plain(found[0]):
        return None
    function, version = found
    inputs = list(node.inputs)
    values: dict[str, ir.Value | None] = {"": None}
    for index, name in enumerate(function.input):
        values[name] = inputs[index] if index < len(inputs) else None
    defaults = {proto.name: proto for proto in function.attribute_proto}
    schema = onnx.defs.get_schema(node.op_type, opset)
    made: list[ir.Node] = []
    for proto in function.node:
        attributes = {}
        for attribute in proto.attribute:
            plain = _resolved(attribute, node, defaults, schema)
            if plain is not None:
                attributes[plain.name] = plain
        new = editor.node(
            proto.op_type,
            [values[name] for name in proto.input],
            name=f"{node.name}_{proto.op_type}",
            domain=proto.domain,
            outputs=len(proto.output),
        )
        for one in attributes.values():
            new.attributes.add(one)
        for name, value in zip(proto.output, new.outputs, strict=True):
            if name:
                values[name] = value
            else:
                value.name = ""
        made.append(new)
    for name, old in zip(function.output, node.outputs, strict=False):
        source = values.get(name)
        if source is None:
            if old.name and is_read(old):
                return None
            source = made[-1].outputs[0]
        made.append(editor.node("Identity", [source], name=f"{node.name}_{name}"))
    return made, version


def _function(node: ir.Node, opset: int, wanted: int) -> tuple[onnx.FunctionProto, int] | None:
    """Return a body and the opset it is written for."""
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    if schema.has_function and schema.function_opset_versions:
        version = _nearest(schema.function_opset_versions, wanted)
        text = schema.get_function_with_opset_version(version)
        return onnx.FunctionProto.FromString(text), version
    if not schema.has_context_dependent_function:
        return None
    version = _nearest(schema.context_dependent_function_opset_versions, wanted)
    types = []
    for value in node.inputs:
        if value is None:
            types.append(onnx.TypeProto().SerializeToString())
            continue
        if value.type is None:
            return None
        types.append(ir.serde.serialize_value(value).type.SerializeToString())
    alone = ir.serde.serialize_node(node).SerializeToString()
    try:
        text = schema.get_context_dependent_function_with_opset_version(version, alone, types)
    except Exception:  # the builder raises what its C++ code happens to
        return None
    function = onnx.FunctionProto.FromString(text)
    return (function, version) if function.node else None


def _plain(function: onnx.FunctionProto) -> bool:
    """Say whether no node has a body of its own, which would read the function's values."""
    return not any(a.HasField("g") or a.graphs for node in function.node for a in node.attribute)


def _nearest(versions: Sequence[int], wanted: int) -> int:
    below = [version for version in versions if version <= wanted]
    return max(below) if below else min(versions)


def _resolved(
    attribute: onnx.AttributeProto,
    node: ir.Node,
    defaults: dict[str, onnx.AttributeProto],
    schema: onnx.defs.OpSchema,
) -> ir.Attr | None:
    """Return an attribute with the node's own value in the place of a reference."""
    if not attribute.ref_attr_name:
        return ir.serde.deserialize_attribute(attribute)
    name = attribute.ref_attr_name
    given = node.attributes.get(name)
    if given is not None:
        proto = ir.serde.serialize_attribute(given)
    elif name in defaults:
        proto = defaults[name]
    elif name in schema.attributes and schema.attributes[name].default_value.name:
        proto = schema.attributes[name].default_value
    else:
        return None
    copy = onnx.AttributeProto()
    copy.CopyFrom(proto)
    copy.name = attribute.name
    return ir.serde.deserialize_attribute(copy)
