"""Lower the version of the ONNX operators a model is written in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx
import onnx_ir as ir
from onnx import inliner

from ortune.core import wording
from ortune.core.errors import BadModel, Refused
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.io import names
from ortune.graph.io.wellformed import load_schema
from ortune.graph.ir import edit
from ortune.graph.shapes.infer import infer_node, infer_shapes
from ortune.graph.shapes.known_values import SymbolicValues
from ortune.transforms.common.raise_version import isolate_node, splice_graph


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
            edit.add_note(model, f"the opset is {opset}")
            return 0
        if self.to < OLDEST:
            raise BadModel(
                f"opset {self.to} is too old: operators are not written in it",
                fix=f"give {OLDEST} or more, or export the model with the older opset",
            )
        edit.inline_functions(model)
        if model.functions:
            function = next(iter(model.functions.values()))
            raise Refused(
                f"function '{function.name}' cannot be inlined, so it keeps its opset",
                fix="export the model without functions",
            )
        infer_shapes(model)
        count = 1
        for node in edit.walk_nodes(model):
            if not node.domain:
                count += _lower_node(node, opset, self.to)
        model.opset_imports[""] = self.to
        names.make_names_unique(model)
        return count


OLDEST = 21
"""Every onnxruntime that is supported reads it; below, operators are spelled otherwise."""


_NEWEST_FOR_RUNTIME = {"Swish": 24}
"""Operator -> the last opset in which onnxruntime 1.31 runs it, by the standard's definition."""


def _lower_node(node: ir.Node, old: int, version: int) -> int:
    """Lower one node from opset `old`; return 1 when it changed."""
    before, after = _find_schema(node.op_type, old), _find_schema(node.op_type, version)
    if before is None:
        raise _make_refusal(node, version, "no such operator is known")
    if after is None:
        return _expand_function(node, old, version, f"opset {version} has no such operator")
    if version > _NEWEST_FOR_RUNTIME.get(node.op_type, version):
        return _expand_function(node, old, version, "onnxruntime has no such operator")
    settings = dict(node.attributes)
    if node.op_type == "Cast" and version < 24:
        node.attributes.pop("round_mode", None)  # it says something of types that are not there
    if why := _fit_attributes(node, before, after):
        if after.since_version == before.since_version:
            raise _make_refusal(node, version, why)
        return _expand_function(node, old, version, why)
    return int(settings != dict(node.attributes))


def _expand_function(node: ir.Node, old: int, version: int, why: str) -> int:
    """Put the standard's own definition in the place of a node, and lower it."""
    definition = _find_definition(node, old, version)
    if definition is None or any(
        a.HasField("g") or a.graphs for part in definition[0].node for a in part.attribute
    ):
        raise _make_refusal(node, version, why)  # a body inside would read the function's values
    function, opset = definition
    before = isolate_node(node, "n0")
    alone = onnx.ModelProto(ir_version=10, graph=before, functions=[function])
    call = alone.graph.node[0]
    alone.functions[0].domain = call.domain = "ortune.standard"
    for name, formal in onnx.defs.get_schema(node.op_type, old).attributes.items():
        if formal.default_value.name and name not in node.attributes:
            call.attribute.append(formal.default_value)
    for domain in ("", call.domain):
        alone.opset_import.add(domain=domain, version=opset)
    whole = inliner.inline_local_functions(alone)
    inferred = SymbolicValues()
    parts = splice_graph(node, ir.serde.deserialize_graph(whole.graph), before)
    for part in parts:
        infer_node(part, {"": opset}, inferred)
    for part in parts:
        _lower_node(part, opset, version)
    return 1


def _find_definition(
    node: ir.Node, opset: int, target_opset: int
) -> tuple[onnx.FunctionProto, int] | None:
    """Return the body of an operator that suits a node, and the opset it is written for."""
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    if schema.has_function and schema.function_opset_versions:
        version = _select_nearest(schema.function_opset_versions, target_opset)
        text = schema.get_function_with_opset_version(version)
        return onnx.FunctionProto.FromString(text), version
    if not schema.has_context_dependent_function:
        return None
    version = _select_nearest(schema.context_dependent_function_opset_versions, target_opset)
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


def _select_nearest(versions: Sequence[int], target_opset: int) -> int:
    below = [version for version in versions if version <= target_opset]
    return max(below) if below else min(versions)


def _find_schema(op: str, version: int) -> onnx.defs.OpSchema | None:
    schema = load_schema(op, "", version)
    return None if schema is None or schema.deprecated else schema


def _make_refusal(node: ir.Node, version: int, why: str) -> Refused:
    return Refused(
        f"{node.op_type} '{node.name}' has no way down to opset {version}: {why}",
        fix="lower it less, or export the model with the older opset",
    )


def _fit_attributes(node: ir.Node, before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> str:
    """Drop attributes that say what is meant anyway, and return what else does not fit."""
    for name, node_attribute in list(node.attributes.items()):
        if name not in after.attributes:
            formal = before.attributes.get(name)
            if formal is None or not _is_default(node_attribute, formal.default_value):
                return f"it has no attribute {name} there"
            node.attributes.pop(name)
    inputs = [value for value in node.inputs if value is not None]
    if len(node.inputs) > after.max_input or len(inputs) < after.min_input:
        most = wording.format_count(after.max_input, "input")
        return f"it takes {after.min_input} to {most} there"
    if len([value for value in node.outputs if value.name]) > after.max_output:
        return f"it has {wording.format_count(after.max_output, 'output')} there"
    sides = ((node.inputs, after.inputs, "input"), (node.outputs, after.outputs, "output"))
    for values, formals, kind in sides:
        for index, value in enumerate(values):
            if value is not None and value.type is not None and formals:
                text = _format_type(value.type)
                if text not in formals[min(index, len(formals) - 1)].types:
                    return f"its {kind} cannot be {text} there"
    to = edit.read_attribute(node, "to", None)
    if node.op_type == "Cast" and to is not None:
        text = f"tensor({ir.DataType(to).name.lower()})"
        if text not in after.outputs[0].types:
            return f"it cannot cast to {text} there"
    return ""


def _is_default(attribute: ir.Attr, default: onnx.AttributeProto) -> bool:
    if attribute.is_ref() or not default.name:
        return False
    usual, value = onnx.helper.get_attribute_value(default), attribute.value
    usual = usual.decode() if isinstance(usual, bytes) else usual
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value) == list(usual)
    return bool(value == usual)


def _format_type(kind: ir.TypeProtocol) -> str:
    match kind:
        case ir.SequenceType():
            return f"seq({_format_type(kind.elem_type)})"
        case ir.OptionalType():
            return f"optional({_format_type(kind.elem_type)})"
        case _:
            return f"tensor({kind.dtype.name.lower()})"
