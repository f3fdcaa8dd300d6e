"""Follow heads back to the tensors that they were split from, and to where they are merged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit
from ortune.graph.ir.edit import Editor, const_array
from ortune.graph.ir.match import maker, number, other, scalar_for
from ortune.graph.ir.spec import shape_of


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


_SPLIT = (0, 2, 1, 3)
_PACKED = (2, 0, 3, 1, 4)


@dataclass(frozen=True)
class Heads:
    """A tensor ``[batch, heads, length, size]`` and the factor that was peeled off it.

    Attributes:
        value: The tensor, or with `split` the one of ``[batch, length, heads, size]``.
        scale: It counted this many times.
        split: Its heads lie behind the length.
        index: With a packed tensor ``[batch, length, n, heads, size]``: which of the n.
        past: What was put in front of it, along the length.
        joined: The two together, which others may read.
        turn: The angles of the rotary position embedding that was taken off it.
        groups: Queries' heads that share one of these.
    """

    value: ir.Value
    scale: float = 1.0
    split: bool = False
    index: int | None = None
    past: ir.Value | None = None
    joined: ir.Value | None = None
    turn: ir.Value | None = None
    groups: int = 1


def untransposed(value: ir.Value) -> Heads | None:
    """Return the keys behind ``[batch, heads, size, length]``; None when they are not found."""
    value, scale = _unscaled(value)
    node = maker(value, "Transpose", "Reshape")
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Transpose":
        perm = tuple(edit.attribute(node, "perm", ()))
        if perm == (0, 1, 3, 2):
            return _scaled(heads(node.inputs[0]), scale)
        return Heads(node.inputs[0], scale, split=True) if perm == (0, 2, 3, 1) else None
    inner = maker(node.inputs[0], "Transpose")
    outer = maker(inner.inputs[0], "Reshape") if inner is not None else None
    if inner is None or outer is None or outer.inputs[0] is None:
        return None
    source, end = shape_of(outer.inputs[0]), shape_of(value)
    if tuple(edit.attribute(inner, "perm", ())) != (0, 2, 1) or source is None or end is None:
        return None
    flat = shape_of(outer.outputs[0])
    same = len(source) == 4 and flat is not None and flat[1:] == source[2:]
    if same and end == (*source[:2], source[3], source[2]) and None not in source:
        return _scaled(heads(outer.inputs[0]), scale)
    return None


def _scaled(one: Heads, scale: float) -> Heads:
    return replace(one, scale=one.scale * scale)


def heads(value: ir.Value) -> Heads:
    """Peel factors, copies for groups, the past, rotation and the split off, in this order."""
    value, scale = _unscaled(value)
    shared = _ungrouped(value)
    if shared is not None:
        value, more = _unscaled(shared[0])
        return replace(_behind(value), scale=scale * more, groups=shared[1])
    return replace(_behind(value), scale=scale)


def _behind(value: ir.Value) -> Heads:
    join = maker(value, "Concat")
    if join is not None and len(join.inputs) == 2 and edit.attribute(join, "axis", 0) in (2, -2):
        past, new = join.inputs
        if past is not None and new is not None:
            return replace(_turned(new), past=past, joined=value)
    return _turned(value)


def _turned(value: ir.Value) -> Heads:
    found = turned(value)
    if found is None:
        return _split(value)
    source, turn = found
    return replace(_split(source), turn=turn)


def _split(value: ir.Value) -> Heads:
    node = maker(value, "Transpose")
    if node is not None and node.inputs[0] is not None:
        if tuple(edit.attribute(node, "perm", ())) == _SPLIT:
            return Heads(node.inputs[0], split=True)
        return Heads(value)
    return _packed(value) or Heads(value)


def _ungrouped(value: ir.Value) -> tuple[ir.Value, int] | None:
    """Return the heads that were each copied for a group of queries' heads, and how often."""
    merge = maker(value, "Reshape")
    spread = maker(merge.inputs[0], "Expand") if merge is not None else None
    raised = maker(spread.inputs[0], "Unsqueeze") if spread is not None else None
    source = raised.inputs[0] if raised is not None else None
    if spread is None or source is None:
        return None
    few, many, wide = (shape_of(one) for one in (source, value, spread.outputs[0]))
    if few is None or many is None or wide is None or len(few) != 4 or len(wide) != 5:
        return None
    heads_of, groups = few[1], wide[2]
    if not isinstance(heads_of, int) or not isinstance(groups, int) or None in few:
        return None
    copied = wide == (few[0], heads_of, groups, *few[2:])
    merged = many == (few[0], heads_of * groups, *few[2:])
    return (source, groups) if copied and merged else None


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """Take products with one number off a value."""
    scale = 1.0
    while (node := maker(value, "Mul", "Div")) is not None:
        one, two = node.inputs
        if node.op_type == "Mul" and number(one) is not None and scalar_for(one, two):
            one, two = two, one
        factor = number(two) if scalar_for(two, one) else None
        if one is None or not factor:
            break
        value, scale = one, scale * (factor if node.op_type == "Mul" else 1 / factor)
    return value, scale


def _packed(value: ir.Value) -> Heads | None:
    """One of the n of ``[n, batch, heads, length, size]``, cut out in whichever way."""
    cut = maker(value, "Squeeze", "Gather")
    if cut is None:
        return None
    if cut.op_type == "Gather":
        at = number(cut.inputs[1])
        index = cut.inputs[1]
        flat = index is not None and index.shape is not None and len(index.shape) == 0
        if edit.attribute(cut, "axis", 0) != 0 or at is None or not flat:
            return None
        source, place = cut.inputs[0], int(at)
    else:
        axes = const_array(cut.inputs[1]) if len(cut.inputs) > 1 else None
        part = cut.inputs[0]
        maker_of = part.producer() if part is not None else None
        if axes is None or axes.tolist() != [0] or maker_of is None or maker_of.domain:
            return None
        found = _slice(maker_of, part)
        if found is None:
            return None
        source, place = found
    turn = maker(source, "Transpose")
    packed = turn.inputs[0] if turn is not None else None
    shape = shape_of(packed)
    if turn is None or packed is None or shape is None or not isinstance(shape[2], int):
        return None
    if tuple(edit.attribute(turn, "perm", ())) != _PACKED:
        return None
    return Heads(packed, index=place % shape[2], split=True) if shape[2] else None


def _slice(node: ir.Node, part: ir.Value | None) -> tuple[ir.Value | None, int] | None:
    """Return what a part of length one along the first axis was cut from, and where."""
    if node.op_type == "Split" and edit.attribute(node, "axis", 0) == 0:
        shapes = [shape_of(one) for one in node.outputs]
        if all(shape is not None and shape[0] == 1 for shape in shapes):
            return node.inputs[0], node.outputs.index(part)
    if node.op_type == "Slice" and len(node.inputs) > 3:
        starts, ends, axes = (const_array(one) for one in node.inputs[1:4])
        shape = shape_of(node.outputs[0])
        if starts is None or ends is None or axes is None or shape is None or shape[0] != 1:
            return None
        if axes.tolist() == [0] and starts[0] >= 0:
            return node.inputs[0], int(starts[0])
    return None


@dataclass
class Flattener:
    """Writes heads as ``[batch, length, heads * size]``, each packed tensor cut once."""

    editor: Editor
    seen: Mapping[str, tuple[int | str | None, ...]]
    """Shapes that onnx's inference finds: what it does not know the width of is reshaped, as
    its rule for Attention takes an unknown width for none."""
    cuts: dict[tuple[ir.Value, ir.Graph | None], list[ir.Value]] = field(default_factory=dict)
    tables: dict[tuple[object, ...], ir.Value] = field(default_factory=dict)

    def flat(self, one: Heads, count: int, size: int, at: ir.Node) -> ir.Value:
        """Return the flat tensor, turned again; new nodes are placed before `at`."""
        flat = self._flat(one, count, size, at)
        if one.turn is None:
            return flat
        tables = [self._table(flat, one.turn, op, at) for op in ("Cos", "Sin")]
        node = self.editor.node("RotaryEmbedding", [flat, *tables], {"num_heads": count})
        node.outputs[0].type, node.outputs[0].shape = flat.type, flat.shape
        edit.insert_before(at, node)
        return node.outputs[0]

    def _table(self, value: ir.Value, angle: ir.Value, op: str, at: ir.Node) -> ir.Value:
        """Return the cosines or sines for every row of the batch, which the kernel asks for."""
        editor = self.editor
        rows, shape = (shape_of(one) or (None,) for one in (value, angle))
        batch = rows[0]
        key = (op, angle, at.graph, batch if batch is not None else value)
        if key not in self.tables:
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
            self.tables[key] = table
        return self.tables[key]

    def _flat(self, one: Heads, count: int, size: int, at: ir.Node) -> ir.Value:
        if one.index is not None:
            return self._cut(one, count * size, at)[one.index]
        return self._source(one.value, count * size) or self._reshaped(one.value, count * size, at)

    def _cut(self, one: Heads, width: int, at: ir.Node) -> list[ir.Value]:
        key = (one.value, at.graph if isinstance(at.graph, ir.Graph) else None)
        if key not in self.cuts:
            shape = shape_of(one.value)
            parts = shape[2] if shape is not None and isinstance(shape[2], int) else 0
            source = self._source(one.value, parts * width)
            whole = source or self._reshaped(one.value, parts * width, at)
            node = self.editor.node(
                "Split", [whole], {"axis": -1, "num_outputs": parts}, outputs=parts
            )
            known = shape_of(whole)
            for value in node.outputs:
                value.type = whole.type
                if known is not None:
                    value.shape = ir.Shape([*known[:-1], width])
            edit.insert_before(at, node)
            self.cuts[key] = list(node.outputs)
        return self.cuts[key]

    def _source(self, value: ir.Value, width: int) -> ir.Value | None:
        """Return the tensor of three dimensions that a Reshape has only split the last one of."""
        node = maker(value, "Reshape")
        source = node.inputs[0] if node is not None else None
        before, after = (shape_of(one) for one in (source, value))
        if source is None or before is None or after is None or len(before) != 3:
            return None
        pairs = zip(before[:2], after, strict=False)
        kept = any(a == b and a not in (None, 0) for a, b in pairs)
        known = self.seen.get(source.name or "", ())[2:] == (width,)
        return source if kept and known and width == _width(after[2:]) else None

    def _reshaped(self, value: ir.Value, width: int, at: ir.Node) -> ir.Value:
        made, shape = reshaped(self.editor, value, (0, 0, width), at), shape_of(value)
        if shape is not None:
            made.shape = ir.Shape([shape[0], shape[1], width])
        return made


def reshaped(editor: Editor, value: ir.Value, to: tuple[int, ...], at: ir.Node) -> ir.Value:
    """Place a Reshape before `at` and return what it makes, without its shape."""
    target = editor.constant(f"{value.name}_to", np.array(to, np.int64))
    node = editor.node("Reshape", [value, target])
    node.outputs[0].type = value.type
    edit.insert_before(at, node)
    return node.outputs[0]


def _width(items: tuple[int | str | None, ...]) -> int | None:
    sizes = [item for item in items if isinstance(item, int)]
    return math.prod(sizes) if len(sizes) == len(items) else None
