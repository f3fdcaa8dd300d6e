"""Limits behind limits: Relu and Clip in a row are one Clip."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortune.model.edit import Editor, every_node
from ortune.model.match import maker, number
from ortune.model.replace import forward, remove
from ortune.model.spec import dims
from ortune.model.uses import alone

_FIRST = 12
"""Clip takes integers and its limits as inputs from here on."""


def merge_limits(model: ir.Model) -> int:
    """Join a Clip or Relu with the one before it that nothing else reads; return how many.

    ::

        clip(clip(x, a, b), c, d) = clip(x, clip(a, c, d), clip(b, c, d))      a <= b, c <= d
        relu(x)                   = clip(x, 0, inf)

    Limits that are not constant, or cross, are left alone. Two Relu in a row are no affair of
    this rule, and neither is Clip behind Relu where the type is no float.
    """
    if model.opset_imports.get("", 0) < _FIRST:
        return 0
    editor = Editor(model.graph)
    count = 0
    for node in every_node(model):
        before = maker(node.inputs[0], "Clip", "Relu") if node.inputs else None
        if before is None or node.domain or node.op_type not in ("Clip", "Relu"):
            continue
        kinds = {node.op_type, before.op_type}
        dtype = before.inputs[0].dtype if before.inputs[0] is not None else None
        if kinds == {"Relu"} or dtype is None or not dtype.is_floating_point():
            continue
        if alone(before.outputs[0]):
            count += _join(node, before, dtype, editor)
    return count


def _join(node: ir.Node, before: ir.Node, dtype: ir.DataType, editor: Editor) -> int:
    one, two = _limits(before), _limits(node)
    if one is None or two is None or node.graph is None:
        return 0
    low, high = (float(np.clip(limit, *two)) for limit in one)
    node.replace_input_with(0, before.inputs[0])
    limits = [
        editor.constant(f"{node.name}_{what}", np.array(limit, dtype.numpy()))
        if np.isfinite(limit)
        else None
        for what, limit in (("min", low), ("max", high))
    ]
    joined = editor.node("Clip", [node.inputs[0], *limits], name=f"{node.name}_clip")
    joined.outputs[0].type, joined.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    return _put(node, joined)


def _put(node: ir.Node, joined: ir.Node) -> int:
    if node.graph is None:
        return 0
    node.graph.insert_before(node, joined)
    forward(node.outputs[0], joined.outputs[0])
    remove(node)
    return 1


def _limits(node: ir.Node) -> tuple[float, float] | None:
    if node.op_type == "Relu":
        return 0.0, np.inf
    found = [-np.inf, np.inf]
    for index, value in enumerate(node.inputs[1:3]):
        if value is None:
            continue
        limit = number(value)
        if limit is None or dims(value.shape) not in ((), None):
            return None
        found[index] = limit
    return (found[0], found[1]) if found[0] <= found[1] else None
