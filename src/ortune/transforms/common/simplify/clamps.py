"""Chains of Relu, Clip, Max and Min with constants: all are one interval, often one Clip."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortune.graph.ir.edit import Editor, has_single_use, read_attribute, replace_node, walk_nodes
from ortune.graph.ir.match import find_producer, read_scalar, scalar_for

_FIRST = 12
"""Clip takes integers and its limits as inputs from here on."""


@dataclass(frozen=True)
class Clamp:
    """A clamp ``min(max(source, low), high)``."""

    source: ir.Value
    low: float
    high: float
    nodes: tuple[ir.Node, ...]


def read_clamp(value: ir.Value | None, opset: int) -> Clamp | None:
    """Take one node apart that bounds a value by constants; None for any other node."""
    node = find_producer(value, "Relu", "Clip", "Max", "Min")
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    source: ir.Value | None = node.inputs[0]
    low, high = -math.inf, math.inf
    match node.op_type:
        case "Relu":
            low = 0.0
        case "Clip":
            bounds = _read_bounds(node, opset)
            if bounds is None:
                return None
            low, high = bounds
        case _:
            source, bound = _split_operands(node)
            if source is None or bound is None:
                return None
            low, high = (bound, high) if node.op_type == "Max" else (low, bound)
    if source is None or not low <= high:
        return None
    return Clamp(source, low, high, (node,))


def merge_clamps(first: Clamp, then: Clamp) -> Clamp:
    """Return one clamp for two in a row."""
    low = min(max(first.low, then.low), then.high)
    high = max(min(first.high, then.high), then.low)
    return Clamp(first.source, low, high, (*first.nodes, *then.nodes))


def trace_clamps(value: ir.Value | None, opset: int) -> Clamp | None:
    """Follow clamps down as far as each is read by the next alone."""
    current = read_clamp(value, opset)
    while current is not None:
        source = current.source
        below = read_clamp(source, opset)
        if below is None or not has_single_use(source):
            return current
        current = merge_clamps(below, current)
    return None


def _read_bounds(node: ir.Node, opset: int) -> tuple[float, float] | None:
    if opset < 11:
        return read_attribute(node, "min", -math.inf), read_attribute(node, "max", math.inf)
    limits = [*node.inputs[1:], None, None][:2]
    limit_numbers = [read_scalar(value) for value in limits]
    if any(v is not None and f is None for v, f in zip(limits, limit_numbers, strict=True)):
        return None
    low, high = limit_numbers
    return -math.inf if low is None else low, math.inf if high is None else high


def _split_operands(node: ir.Node) -> tuple[ir.Value | None, float | None]:
    """The operand of Max or Min that varies, and the other one's number."""
    if len(node.inputs) != 2:
        return None, None
    first, second = node.inputs
    for x, bound in ((first, second), (second, first)):
        if read_scalar(bound) is not None and read_scalar(x) is None and scalar_for(bound, x):
            return x, read_scalar(bound)
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
    for node in walk_nodes(model):
        before = find_producer(node.inputs[0], "Clip", "Relu") if node.inputs else None
        if before is None or node.domain or node.op_type not in ("Clip", "Relu"):
            continue
        first, second = read_clamp(before.outputs[0], opset), read_clamp(node.outputs[0], opset)
        if first is None or second is None or {node.op_type, before.op_type} == {"Relu"}:
            continue
        dtype = first.source.dtype
        if dtype is not None and dtype.is_floating_point() and has_single_use(before.outputs[0]):
            merged = merge_clamps(first, second)
            limits = [
                editor.add_constant(f"{node.name}_{bound_name}", np.array(limit, dtype.numpy()))
                if np.isfinite(limit)
                else None
                for bound_name, limit in (("min", merged.low), ("max", merged.high))
            ]
            clip = editor.make_node("Clip", [merged.source, *limits], name=f"{node.name}_clip")
            count += int(replace_node(node, clip))
    return count
