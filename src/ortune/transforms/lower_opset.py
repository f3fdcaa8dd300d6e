"""Lower the version of the ONNX operators a model is written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

from ortune.core import wording
from ortune.core.errors import BadModel, Refused
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit
from ortune.model.graph.edit import attribute
from ortune.model.graph.replace import forward
from ortune.model.graph.uses import is_read
from ortune.model.io import names
from ortune.model.shapes.infer import infer, infer_node
from ortune.model.shapes.known_values import Known


@dataclass(frozen=True)
class LowerOpset(Transform):
    """The same computation in older operators, for runtimes that read no newer ones.

    What only takes more types there stays, and what does not exist below (SwiGLU, RMS and layer
    normalization, Gelu) is written out as the standard defines it. What has no way down is
    refused by name, and nothing is written.

    Attributes:
        to: Version of the default domain, 21 or more; must be given.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False

    to: int = 0

    def applies(self, facts: Facts) -> bool:
        return facts.opset > self.to > 0

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many nodes changed, the import counted as one.

        Raises:
            BadModel: There is no such version.
            Refused: No version is given, or an operator has no way down.
        """
        if not self.to:
            raise Refused(
                "lower-opset needs a target version", fix='write it: "lower-opset(to=21)"'
            )
        if (opset := model.opset_imports.get("", 0)) <= self.to:
            edit.note(model, f"the opset is {opset}")
            return 0
        return lower_to(model, self.to) + 1


OLDEST = 21
"""Every onnxruntime that is supported reads it; below, operators are spelled otherwise."""


def lower_to(model: ir.Model, version: int) -> int:
    """Rewrite the nodes whose operator has changed, set the version, return how many changed.

    Local functions are inlined first.

    Raises:
        BadModel: `version` is none that can be had.
        Refused: An operator, or how it is used, does not exist there; it is named.
    """
    old = model.opset_imports.get("", 0)
    if version < OLDEST:
        raise BadModel(
            f"opset {version} is too old: operators are not written in it",
            fix=f"give {OLDEST} or more, or export the model with the older opset",
        )
    if old <= version:
        return 0
    edit.inline(model)
    if model.functions:
        function = next(iter(model.functions.values()))
        raise Refused(
            f"function '{function.name}' cannot be inlined, so it keeps its opset",
            fix="export the model without functions",
        )
    infer(model)
    count = 0
    editor = edit.Editor(model.graph)
    for graph in list(edit.every_graph(model)):
        for node in list(graph):
            if not node.domain:
                count += _lower(editor, node, old, version)
    model.opset_imports[""] = version
    names.unique(model)
    return count


def _lower(editor: edit.Editor, node: ir.Node, old: int, version: int) -> int:
    """Lower one node from opset `old`; return 1 when it changed."""
    before, after = _schema(node.op_type, old), _schema(node.op_type, version)
    if before is None:
        raise _refusal(node, version, "no such operator is known")
    if after is None:
        return _expand(editor, node, old, version, f"opset {version} has no such operator")
    settings = dict(node.attributes)
    if node.op_type == "Cast" and version < 24:
        node.attributes.pop("round_mode", None)  # it says something of types that are not there
    if why := _misfit(node, before, after):
        if after.since_version == before.since_version:
            raise _refusal(node, version, why)
        return _expand(editor, node, old, version, why)
    return int(settings != dict(node.attributes))


def _expand(editor: edit.Editor, node: ir.Node, old: int, version: int, why: str) -> int:
    """Put the function body in the place of a node, and lower it."""
    body = function_body(editor, node, old, version)
    if body is None or node.graph is None:
        raise _refusal(node, version, why)
    nodes, opset = body
    node.graph.insert_before(node, nodes)
    ends = nodes[-len(node.outputs) :]
    for value, end in zip(list(node.outputs), ends, strict=True):
        end.outputs[0].type, end.outputs[0].shape = value.type, value.shape
        forward(value, end.outputs[0])
    edit.take_out(node)
    known = Known()
    for part in nodes:
        infer_node(part, {"": opset}, known)
    for part in nodes:
        _lower(editor, part, opset, version)
    return 1


def _schema(op: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        schema = onnx.defs.get_schema(op, version)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _refusal(node: ir.Node, version: int, why: str) -> Refused:
    return Refused(
        f"{node.op_type} '{node.name}' has no way down to opset {version}: {why}",
        fix="lower it less, or export the model with the older opset",
    )


def _misfit(node: ir.Node, before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> str:
    """Drop attributes that say what is meant anyway, and return what else does not fit."""
    for name, held in list(node.attributes.items()):
        if name not in after.attributes:
            formal = before.attributes.get(name)
            if formal is None or not _is_default(held, formal.default_value):
                return f"it has no attribute {name} there"
            node.attributes.pop(name)
    inputs = [value for value in node.inputs if value is not None]
    if len(node.inputs) > after.max_input or len(inputs) < after.min_input:
        return f"it takes {after.min_input} to {wording.count(after.max_input, 'input')} there"
    if len([value for value in node.outputs if value.name]) > after.max_output:
        return f"it has {wording.count(after.max_output, 'output')} there"
    sides = ((node.inputs, after.inputs, "input"), (node.outputs, after.outputs, "output"))
    for values, formals, kind in sides:
        for index, value in enumerate(values):
            if value is not None and value.type is not None and formals:
                text = _type(value.type)
                if text not in formals[min(index, len(formals) - 1)].types:
                    return f"its {kind} cannot be {text} there"
    to = attribute(node, "to", None)
    if node.op_type == "Cast" and to is not None:
        text = f"tensor({ir.DataType(to).name.lower()})"
        if text not in after.outputs[0].types:
            return f"it cannot cast to {text} there"
    return ""


def _is_default(held: ir.Attr, default: onnx.AttributeProto) -> bool:
    if held.is_ref() or not default.name:
        return False
    usual, value = onnx.helper.get_attribute_value(default), held.value
    usual = usual.decode() if isinstance(usual, bytes) else usual
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value) == list(usual)
    return bool(value == usual)


def _type(kind: ir.TypeProtocol) -> str:
    match kind:
        case ir.SequenceType():
            return f"seq({_type(kind.elem_type)})"
        case ir.OptionalType():
            return f"optional({_type(kind.elem_type)})"
        case _:
            return f"tensor({kind.dtype.name.lower()})"


def function_body(
    editor: edit.Editor, node: ir.Node, opset: int, wanted: int
) -> tuple[list[ir.Node], int] | None:
    """Return the standard's own definition of a node as nodes, and the opset they are of.

    They end with Identity nodes, one an output. None where the standard has no body, or none for
    how the node is used.

    Args:
        editor: Names the nodes.
        node: Of the default domain.
        opset: Of the node.
        wanted: Opset that is aimed at: of several bodies the nearest is taken.
    """
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    found = _function(schema, node, wanted)
    if found is None or any(
        a.HasField("g") or a.graphs for n in found[0].node for a in n.attribute
    ):
        return None  # a body inside would read the function's values
    function, version = found
    values: dict[str, ir.Value | None] = dict.fromkeys(["", *function.input])
    values |= zip(function.input, node.inputs, strict=False)
    defaults = {name: formal.default_value for name, formal in schema.attributes.items()}
    defaults |= {proto.name: proto for proto in function.attribute_proto}
    nodes: list[ir.Node] = []
    for proto in function.node:
        part = editor.node(
            proto.op_type,
            [values[name] for name in proto.input],
            {a.name: a for a in _resolve(proto, node, defaults)},
            name=f"{node.name}_{proto.op_type}",
            domain=proto.domain,
            outputs=len(proto.output),
        )
        for name, value in zip(proto.output, part.outputs, strict=True):
            if name:
                values[name] = value
            else:
                value.name = ""
        nodes.append(part)
    for name, output in zip(function.output, node.outputs, strict=False):
        source = values.get(name)
        if source is None:
            if output.name and is_read(output):
                return None
            source = nodes[-1].outputs[0]
        nodes.append(editor.node("Identity", [source], name=f"{node.name}_{name}"))
    return nodes, version


def _function(schema: Any, node: ir.Node, wanted: int) -> tuple[onnx.FunctionProto, int] | None:
    """Return a body and the opset it is written for."""
    if schema.has_function and schema.function_opset_versions:
        version = _nearest(schema.function_opset_versions, wanted)
        text = schema.get_function_with_opset_version(version)
        return onnx.FunctionProto.FromString(text), version
    if not schema.has_context_dependent_function:
        return None
    version = _nearest(schema.context_dependent_function_opset_versions, wanted)
    if any(value is not None and value.type is None for value in node.inputs):
        return None
    types = [
        onnx.TypeProto() if value is None else ir.serde.serialize_value(value).type
        for value in node.inputs
    ]
    alone = ir.serde.serialize_node(node).SerializeToString()
    try:
        text = schema.get_context_dependent_function_with_opset_version(
            version, alone, [kind.SerializeToString() for kind in types]
        )
    except Exception:  # the builder raises what its C++ code happens to
        return None
    function = onnx.FunctionProto.FromString(text)
    return (function, version) if function.node else None


def _nearest(versions: Sequence[int], wanted: int) -> int:
    below = [version for version in versions if version <= wanted]
    return max(below) if below else min(versions)


def _resolve(
    proto: onnx.NodeProto, node: ir.Node, defaults: Mapping[str, onnx.AttributeProto]
) -> Iterator[ir.Attr]:
    """Yield a body's attributes with the node's own values in the place of references."""
    for held in proto.attribute:
        if not held.ref_attr_name:
            yield ir.serde.deserialize_attribute(held)
            continue
        value = node.attributes.get(held.ref_attr_name)
        source = ir.serde.serialize_attribute(value) if value else defaults[held.ref_attr_name]
        if source.name:
            copy = onnx.AttributeProto()
            copy.CopyFrom(source)
            copy.name = held.name
            yield ir.serde.deserialize_attribute(copy)
