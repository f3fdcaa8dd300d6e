"""Limits behind limits: Relu and Clip in a row are one Clip."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortune.model.graph.edit import Editor, every_node
from ortune.model.graph.match import maker
from ortune.model.graph.replace import replace
from ortune.model.graph.uses import alone
from ortune.rewrites.simplify.clamps import Clamp, clamp, joined

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
    opset = model.opset_imports.get("", 0)
    if opset < _FIRST:
        return 0
    editor = Editor(model.graph)
    count = 0
    for node in every_node(model):
        before = maker(node.inputs[0], "Clip", "Relu") if node.inputs else None
        if before is None or node.domain or node.op_type not in ("Clip", "Relu"):
            continue
        one, two = clamp(before.outputs[0], opset), clamp(node.outputs[0], opset)
        if one is None or two is None or {node.op_type, before.op_type} == {"Relu"}:
            continue
        dtype = one.source.dtype
        if dtype is not None and dtype.is_floating_point() and alone(before.outputs[0]):
            count += _put(node, joined(one, two), dtype, editor)
    return count


def _put(node: ir.Node, found: Clamp, dtype: ir.DataType, editor: Editor) -> int:
    limits = [
        editor.constant(f"{node.name}_{what}", np.array(limit, dtype.numpy()))
        if np.isfinite(limit)
        else None
        for what, limit in (("min", found.low), ("max", found.high))
    ]
    made = editor.node("Clip", [found.source, *limits], name=f"{node.name}_clip")
    return int(replace(node, made))
