"""Chains of Relu, Clip, Max and Min with constants: all are one interval, often one Clip."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortune.graph.ir.edit import Editor, attribute, every_node
from ortune.graph.ir.match import maker, number, scalar_for
from ortune.graph.ir.replace import replace
from ortune.graph.ir.uses import alone

_FIRST = 12
"""Clip takes integers and its limits as inputs from here on."""


@dataclass(frozen=True)
class Clamp:
    """min(max(source, low), high)."""

    source: ir.Value
    low: float
    high: float
    nodes: tuple[ir.Node, ...]


def clamp(value: ir.Value | None, opset: int) -> Clamp | None:
    """Take one node apart that bounds a value by constants; None for any other node."""
    node = maker(value, "Relu", "Clip", "Max", "Min")
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    source: ir.Value | None = node.inputs[0]
    low, high = -math.inf, math.inf
    match node.op_type:
        case "Relu":
            low = 0.0
        case "Clip":
            bounds = _bounds(node, opset)
            if bounds is None:
                return None
            low, high = bounds
        case _:
            source, bound = _pair(node)
            if source is None or bound is None:
                return None
            low, high = (bound, high) if node.op_type == "Max" else (low, bound)
    if source is None or not low <= high:
        return None
    return Clamp(source, low, high, (node,))


def joined(first: Clamp, then: Clamp) -> Clamp:
    """Return one clamp for two in a row."""
    low = min(max(first.low, then.low), then.high)
    high = max(min(first.high, then.high), then.low)
    return Clamp(first.source, low, high, (*first.nodes, *then.nodes))


def chain(value: ir.Value | None, opset: int) -> Clamp | None:
    """Follow clamps down as far as each is read by the next alone."""
    found = clamp(value, opset)
    while found is not None:
        source = found.source
        below = clamp(source, opset)
        if below is None or not alone(source):
            return found
        found = joined(below, found)
    return None


def _bounds(node: ir.Node, opset: int) -> tuple[float, float] | None:
    if opset < 11:
        return attribute(node, "min", -math.inf), attribute(node, "max", math.inf)
    given = [*node.inputs[1:], None, None][:2]
    found = [number(value) for value in given]
    if any(v is not None and f is None for v, f in zip(given, found, strict=True)):
        return None
    low, high = found
    return -math.inf if low is None else low, math.inf if high is None else high


def _pair(node: ir.Node) -> tuple[ir.Value | None, float | None]:
    """The operand of Max or Min that varies, and the other one's number."""
    if len(node.inputs) != 2:
        return None, None
    one, two = node.inputs
    for x, bound in ((one, two), (two, one)):
        if number(bound) is not None and number(x) is None and scalar_for(bound, x):
            return x, number(bound)
    return None, None


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
            found = joined(one, two)
            limits = [
                editor.constant(f"{node.name}_{what}", np.array(limit, dtype.numpy()))
                if np.isfinite(limit)
                else None
                for what, limit in (("min", found.low), ("max", found.high))
            ]
            made = editor.node("Clip", [found.source, *limits], name=f"{node.name}_clip")
            count += int(replace(node, made))
    return count
