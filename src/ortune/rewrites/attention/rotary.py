"""Rotary position embeddings written out: pairs of a head's halves turned by an angle."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.edit import Editor, const_array
from ortune.model.graph.match import maker, other
from ortune.model.graph.spec import shape_of


def turned(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return what was turned, and the angles ``[batch or 1, length, size / 2]``; None else.

    Turned is ``x cos + (-upper half of x, lower half of x) sin``, both halves by the same angles.
    """
    total = maker(value, "Add")
    if total is None:
        return None
    for one, two in (total.inputs, reversed(total.inputs)):
        plain, crossed = maker(one, "Mul"), maker(two, "Mul")
        if plain is None or crossed is None:
            continue
        for swapped in crossed.inputs:
            source = _rotated(swapped)
            cosine, sine = other(plain, source), other(crossed, swapped)
            angle = _angle(cosine, "Cos") if source is not None else None
            if source is not None and angle is not None and angle is _angle(sine, "Sin"):
                return source, angle
    return None


def _rotated(value: ir.Value | None) -> ir.Value | None:
    """Return x of ``(-upper half of x, lower half of x)``."""
    join = maker(value, "Concat")
    shape = shape_of(value)
    if join is None or shape is None or len(join.inputs) != 2 or len(shape) != 4:
        return None
    minus, low = maker(join.inputs[0], "Neg"), join.inputs[1]
    if minus is None or edit.attribute(join, "axis", 0) not in (-1, 3) or shape[3] is None:
        return None
    upper, lower = _half(minus.inputs[0], shape[3]), _half(low, shape[3])
    if upper is None or lower is None or (upper[1], lower[1]) != (1, 0):
        return None
    return lower[0] if upper[0] is lower[0] else None


def _half(value: ir.Value | None, size: int | str) -> tuple[ir.Value, int] | None:
    """Return the tensor of which a value is one half of the last axis, and which one."""
    node = value.producer() if value is not None else None
    shape = shape_of(value)
    if node is None or node.domain or shape is None or not isinstance(size, int):
        return None
    source, last = node.inputs[0], shape[-1]
    if source is None or last != size // 2 or size % 2:
        return None
    if node.op_type == "Split" and edit.attribute(node, "axis", 0) in (-1, 3):
        return source, node.outputs.index(value)
    if node.op_type != "Slice" or len(node.inputs) < 4:
        return None
    starts, axes = const_array(node.inputs[1]), const_array(node.inputs[3])
    steps = const_array(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    if starts is None or axes is None or steps is None or starts.size != 1:
        return None
    if axes.tolist() not in ([3], [-1]) or steps.tolist() != [1]:
        return None
    start = int(starts[0]) + (size if starts[0] < 0 else 0)
    return (source, start // (size // 2)) if start in (0, size // 2) else None


def _angle(value: ir.Value | None, function: str) -> ir.Value | None:
    """Return the angles of one half behind ``unsqueeze(cos(concat(angle, angle)), 1)``."""
    raised = maker(value, "Unsqueeze")
    axes = const_array(raised.inputs[1]) if raised is not None else None
    wave = maker(raised.inputs[0], function) if raised is not None else None
    join = maker(wave.inputs[0], "Concat") if wave is not None else None
    if axes is None or axes.tolist() != [1] or join is None or len(join.inputs) != 2:
        return None
    angle = join.inputs[0]
    shape = shape_of(angle)
    if shape is None or len(shape) != 3 or edit.attribute(join, "axis", 0) not in (-1, 2):
        return None
    return angle if join.inputs[1] is angle else None


def write(
    editor: Editor,
    value: ir.Value,
    angle: ir.Value,
    count: int,
    at: ir.Node,
    made: dict[tuple[object, ...], ir.Value],
) -> ir.Value:
    """Place a RotaryEmbedding of ``[batch, length, heads * size]`` before `at`.

    Args:
        count: Heads.
        made: What was made so far; tables of one batch are made once.
    """
    tables = [_table(editor, value, angle, op, at, made) for op in ("Cos", "Sin")]
    node = editor.node("RotaryEmbedding", [value, *tables], {"num_heads": count})
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    edit.insert_before(at, node)
    return node.outputs[0]


def _table(
    editor: Editor,
    value: ir.Value,
    angle: ir.Value,
    op: str,
    at: ir.Node,
    made: dict[tuple[object, ...], ir.Value],
) -> ir.Value:
    """Return the cosines or sines for every row of the batch, which the kernel asks for."""
    rows, shape = (shape_of(one) or (None,) for one in (value, angle))
    batch = rows[0]
    key = (op, angle, at.graph, batch if batch is not None else value)
    if key in made:
        return made[key]
    wave = editor.node(op, [angle])
    edit.insert_before(at, wave)
    table = wave.outputs[0]
    table.type, table.shape = angle.type, angle.shape
    if batch is None or shape[0] != batch:
        size = editor.node("Shape", [value], {"start": 0, "end": 1})
        ones = editor.constant("rotary_ones", np.ones(2, np.int64))
        to = editor.node("Concat", [size.outputs[0], ones], {"axis": 0})
        spread = editor.node("Expand", [table, to.outputs[0]])
        for node in (size, to):
            node.outputs[0].dtype = ir.DataType.INT64
        spread.outputs[0].type = angle.type
        spread.outputs[0].shape = ir.Shape([batch, *shape[1:]])
        edit.insert_before(at, size, to, spread)
        table = spread.outputs[0]
    made[key] = table
    return table
