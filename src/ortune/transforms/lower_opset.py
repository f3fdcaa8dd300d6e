"""Lower the version of the ONNX operators a model is written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core import wording
from ortune.core.errors import BadModel, Refused
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit
from ortune.model.graph.edit import attribute, const_array, discard
from ortune.model.graph.replace import forward
from ortune.model.graph.spec import shape_of
from ortune.model.graph.uses import is_read
from ortune.model.graph.values import overridable
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
        to: Version of the default domain, 13 or more; must be given.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False

    to: int = 0

    def applies(self, facts: Facts) -> bool:
        """The model is newer."""
        return facts.opset > self.to > 0

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many nodes changed, the import counted as one.

        Raises:
            BadModel: There is no such version.
            Refused: No version is given, or an operator has no way down.
        """
        if not self.to:
            raise Refused(
                "lower-opset needs a target version",
                fix='write it: "lower-opset(to=17)"',
            )
        if (opset := model.opset_imports.get("", 0)) <= self.to:
            edit.note(model, f"the opset is {opset}")
            return 0
        return lower_to(model, self.to) + 1


OLDEST = 13
"""Below, axes and splits were attributes, and softmax took several axes for one."""


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
    settings, inputs = dict(node.attributes), list(node.inputs)
    for boundary, adapt in _ADAPTERS.get(node.op_type, ()):
        if version < boundary <= before.since_version and (why := adapt(editor, node)):
            raise _refusal(node, version, why)
    if why := _misfit(node, before, after):
        if after.since_version == before.since_version:
            raise _refusal(node, version, why)
        return _expand(editor, node, old, version, why)
    return int(settings != dict(node.attributes) or inputs != list(node.inputs))


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


# What is spelled otherwise: adapters edit a node and return why there is no way, or nothing.

Adapter: TypeAlias = Callable[[edit.Editor, ir.Node], str]


def _write_axes_as_attribute(editor: edit.Editor, node: ir.Node) -> str:
    """Reductions: axes are an attribute; none of them and `noop_with_empty_axes` is refused."""
    noop = attribute(node, "noop_with_empty_axes", 0)
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    array = const_array(axes)
    if noop and (axes is None or (array is not None and array.size == 0)):
        return "without axes it reduces nothing"
    if axes is not None:
        if array is None or overridable(axes):
            return "its axes are computed, and were fixed there"
        if array.size:
            node.attributes.add(ir.AttrInt64s("axes", [int(x) for x in array.reshape(-1)]))
    node.attributes.pop("noop_with_empty_axes", None)
    node.resize_inputs(1)
    discard(axes)
    return ""


def _write_split_sizes(editor: edit.Editor, node: ir.Node) -> str:
    """Equal parts are given by the number of outputs, others by their sizes."""
    count = node.attributes.pop("num_outputs", None)
    if count is None or len(node.inputs) > 1:
        return ""
    shape = shape_of(node.inputs[0])
    size = shape[attribute(node, "axis", 0)] if shape is not None else None
    if not isinstance(size, int):
        return "the size that it splits is not known"
    number = len(node.outputs)
    part = -(-size // number)
    sizes = [part] * (number - 1) + [size - part * (number - 1)]
    if len(set(sizes)) > 1:
        node.resize_inputs(2)
        held = editor.constant(f"{node.name}_split", np.asarray(sizes, np.int64))
        node.replace_input_with(1, held)
    return ""


def _drop_allowzero(editor: edit.Editor, node: ir.Node) -> str:
    """Where zeros are sizes (of empty tensors) a target must be known to have none."""
    to = const_array(node.inputs[1])
    if attribute(node, "allowzero", 0) and (to is None or (to == 0).any()):
        return "zeros of its target are sizes, and stood for copies there"
    node.attributes.pop("allowzero", None)
    return ""


def _name_grid_modes(editor: edit.Editor, node: ir.Node) -> str:
    older = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    mode = attribute(node, "mode", "linear")
    source = node.inputs[0]
    if source is None or source.shape is None or len(source.shape) != 4:
        return "only pictures are sampled there"
    node.attributes.add(ir.AttrString("mode", older.get(mode, mode)))
    return ""


def _drop(name: str) -> Adapter:
    """Drop what says something of types only that are not there."""

    def adapt(editor: edit.Editor, node: ir.Node) -> str:
        node.attributes.pop(name, None)
        return ""

    return adapt


def _allow(name: str, *allowed: str) -> Adapter:
    """Refuse a value of a text attribute (the first is its default) that is not known there."""

    def adapt(editor: edit.Editor, node: ir.Node) -> str:
        value = attribute(node, name, allowed[0])
        return "" if value in allowed else f"it has no {name} {value} there"

    return adapt


def _refuse_unset(name: str, default: str, older: str) -> Adapter:
    """Refuse where the older operator has no such attribute and means another default."""

    def adapt(editor: edit.Editor, node: ir.Node) -> str:
        value = attribute(node, name, default)
        if value != older:
            return f"it has no {name} {value} there"
        node.attributes.pop(name, None)
        return ""

    return adapt


_REDUCTION = (
    (18, _allow("reduction", "none", "add", "mul")),
    (16, _allow("reduction", "none")),
    (16, _drop("reduction")),
)
_MODES = "half_pixel pytorch_half_pixel align_corners asymmetric tf_crop_and_resize"
_ADAPTERS: Mapping[str, Sequence[tuple[int, Adapter]]] = {
    **{
        f"Reduce{kind}": ((18, _write_axes_as_attribute),)
        for kind in ("Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
    "Split": ((18, _write_split_sizes),),
    "Cast": ((24, _drop("round_mode")), (19, _drop("saturate"))),
    "Reshape": ((14, _drop_allowzero),),
    "GridSample": ((20, _name_grid_modes),),
    "RoiAlign": (
        (16, _refuse_unset("coordinate_transformation_mode", "half_pixel", "output_half_pixel")),
    ),
    "Resize": ((19, _allow("coordinate_transformation_mode", *_MODES.split())),),
    "Pad": ((19, _allow("mode", "constant", "reflect", "edge")),),
    "ScatterElements": _REDUCTION,
    "ScatterND": _REDUCTION,
}
"""Operator -> (version of the change, how to go below it), newest change first."""


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
