"""Lower the version of the default domain, node by node.

A node whose operator did not change stays. One that only lost types or optional attributes stays
where it uses none of them. `adapters.ADAPTERS` rewrites what is spelled otherwise below; an
operator that does not exist below gives way to its function body, as the standard defines it,
which is lowered in turn. Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ortune.core import wording
from ortune.core.errors import BadModel, Refused
from ortune.model.graph import edit
from ortune.model.io import names
from ortune.model.shapes.infer import infer
from ortune.model.shapes.known_values import Known
from ortune.model.shapes.node import infer_node
from ortune.rewrites.opset.adapters import ADAPTERS
from ortune.rewrites.opset.function_body import body_of
from ortune.rewrites.opset.lowering import Lowering

_OLDEST = 7
"""Below, element-wise operators broadcast by an attribute."""


def lower_to(model: ir.Model, version: int) -> int:
    """Rewrite the nodes whose operator has changed, set the version, return how many changed.

    Local functions are inlined first.

    Raises:
        BadModel: `version` is none that can be had.
        Refused: An operator, or how it is used, does not exist there; it is named.
    """
    old = model.opset_imports.get("", 0)
    if version < _OLDEST:
        raise BadModel(f"opset {version} is too old", fix=f"give {_OLDEST} or more")
    if old <= version:
        return 0
    edit.inline(model)
    if model.functions:
        left = next(iter(model.functions.values()))
        raise Refused(
            f"function '{left.name}' cannot be inlined, so it keeps its opset",
            fix="export the model without functions",
        )
    infer(model)
    count = 0
    for graph in list(edit.every_graph(model)):
        work = Lowering(edit.Editor(model.graph), version)
        for node in list(graph):
            if not node.domain:
                count += _lower(work, node, old)
        for text in work.notes:
            edit.note(model, text)
    model.opset_imports[""] = version
    names.unique(model)
    return count


def _lower(work: Lowering, node: ir.Node, old: int) -> int:
    """Lower one node from opset `old`; return 1 when it changed."""
    before = _schema(node.op_type, old)
    if before is None:
        raise _no(work, node, "no such operator is known")
    after = _schema(node.op_type, work.version)
    if after is not None and after.since_version == before.since_version:
        if why := _unfit(node, before, after):
            raise _no(work, node, why)
        return 0
    changed = 0
    for boundary, adapt in ADAPTERS.get(node.op_type, ()):
        if work.version < boundary <= before.since_version:
            made = adapt(work, node)
            if isinstance(made, str):
                raise _no(work, node, made)
            if made is not None:
                # Written for the operators of the opset just below the boundary.
                _lower_all(work, made, boundary - 1)
                return 1
            changed = 1
    if after is None:
        return _expand(work, node, old)
    if why := _unfit(node, before, after):
        return _expand(work, node, old, why)
    return changed


def _expand(work: Lowering, node: ir.Node, old: int, why: str = "") -> int:
    """Put the function body in the place of a node, and lower it."""
    found = body_of(node, old, work.version, work.editor)
    if found is None:
        raise _no(work, node, why or f"opset {work.version} has no such operator")
    made, version = found
    _lower_all(work, work.replace(node, made), version)
    return 1


def _lower_all(work: Lowering, made: Sequence[ir.Node], opset: int) -> None:
    """Lower new nodes, whose types are inferred first."""
    known = Known()
    for node in made:
        infer_node(node, {"": opset}, known)
    for node in made:
        _lower(work, node, opset)


def _schema(op: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        found = onnx.defs.get_schema(op, version)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


def _unfit(node: ir.Node, before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> str:
    """Drop attributes that say what is meant anyway, and return what else does not fit."""
    for name, attribute in list(node.attributes.items()):
        if name in after.attributes:
            continue
        known = before.attributes.get(name)
        default = known.default_value if known is not None else None
        if default is None or not default.name or not _equals(attribute, default):
            return f"it has no attribute {name} there"
        node.attributes.pop(name)
    given = [value for value in node.inputs if value is not None]
    if len(node.inputs) > after.max_input or len(given) < after.min_input:
        return f"it takes {after.min_input} to {wording.count(after.max_input, 'input')} there"
    if len([value for value in node.outputs if value.name]) > after.max_output:
        return f"it has {wording.count(after.max_output, 'output')} there"
    sides = ((node.inputs, after.inputs, "input"), (node.outputs, after.outputs, "output"))
    for values, formal, kind in sides:
        for index, value in enumerate(values):
            wrong = _type_outside(value, formal, index)
            if wrong:
                return f"its {kind} cannot be {wrong} there"
    to = node.attributes.get("to")
    if to is not None and node.op_type == "Cast":
        target = f"tensor({ir.DataType(to.as_int()).name.lower()})"
        if target not in after.outputs[0].types:
            return f"it cannot cast to {target} there"
    return ""


def _equals(attribute: ir.Attr, default: onnx.AttributeProto) -> bool:
    if attribute.is_ref():
        return False
    wanted = onnx.helper.get_attribute_value(default)
    found = attribute.value
    wanted = wanted.decode() if isinstance(wanted, bytes) else wanted
    if isinstance(found, Sequence) and not isinstance(found, str):
        return list(found) == list(wanted)
    return bool(found == wanted)


def _type_outside(
    value: ir.Value | None, formal: Sequence[onnx.defs.OpSchema.FormalParameter], index: int
) -> str:
    """Return a value's type where the older operator does not take it."""
    if value is None or value.type is None or not formal:
        return ""
    text = _type(value.type)
    allowed = formal[min(index, len(formal) - 1)].types
    return "" if text in allowed else text


def _type(kind: ir.TypeProtocol) -> str:
    match kind:
        case ir.SequenceType():
            return f"seq({_type(kind.elem_type)})"
        case ir.OptionalType():
            return f"optional({_type(kind.elem_type)})"
        case _:
            return f"tensor({kind.dtype.name.lower()})"


def _no(work: Lowering, node: ir.Node, why: str) -> Refused:
    return Refused(
        f"{node.op_type} '{node.name}' has no way down to opset {work.version}: {why}",
        fix="lower it less, or export the model with the older opset",
    )
