"""Lengths of a tensor, taken out of its shape by one node."""

from __future__ import annotations

import onnx_ir as ir

from ortune.model.graph.edit import Editor, every_node
from ortune.model.graph.replace import forward
from ortune.model.graph.spec import shape_of
from ortune.model.shapes.known_values import Known

_FIRST = 15
"""Shape takes a start and an end from this opset on."""

_PASSING = ("Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape")


def settle_lengths(model: ir.Model, known: Known) -> int:
    """Write what is taken out of a Shape in several steps as one Shape; return how many were.

    ``unsqueeze(gather(shape(x), i), 0) = shape(x, start=i, end=i+1)``: what Slice, Reshape and
    Expand read as a list. Lengths that are read as a scalar keep their Gather.
    """
    if model.opset_imports.get("", 0) < _FIRST:
        return 0
    editor = Editor(model.graph)
    count = 0
    for node in every_node(model):
        if node.domain or node.op_type not in _PASSING or node.graph is None:
            continue
        value = node.outputs[0]
        part = known.parts.get(value)
        if part is None or part.scalar or value in known.arrays or not part.items:
            continue
        source = _measured(node)
        shape = shape_of(source)
        if source is None or shape is None or None in part.items:
            continue
        size = len(part.items)
        starts = [i for i in range(len(shape)) if shape[i : i + size] == part.items]
        if starts:
            limits = {"start": starts[0], "end": starts[0] + size}
            made = editor.node("Shape", [source], limits, name=f"{node.name}_length")
            made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
            node.graph.insert_before(node, made)
            count += forward(value, made.outputs[0])
    return count


def _measured(node: ir.Node) -> ir.Value | None:
    """Return the tensor whose Shape a chain of takings begins with."""
    before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if before is None or before.domain:
        return None
    if before.op_type == "Shape":
        return before.inputs[0]
    return _measured(before) if before.op_type in _PASSING else None
