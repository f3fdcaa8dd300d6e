"""Follow heads back to the tensors that they were split from, and to where they are merged."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ortune.graph.ir.edit import Editor, const_array, insert_before, read_attribute, shape_of
from ortune.graph.ir.match import find_other_operand, find_producer, read_scalar, scalar_for


def split_rotation(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return what was turned, and the angles ``[batch or 1, length, size / 2]``; None else.

    Turned is ``x cos + (-upper half of x, lower half of x) sin``, both halves by the same angles.
    """
    total = find_producer(value, "Add")
    if total is None:
        return None
    for cosine_term, sine_term in (total.inputs, reversed(total.inputs)):
        plain, crossed = find_producer(cosine_term, "Mul"), find_producer(sine_term, "Mul")
        if plain is None or crossed is None:
            continue
        for swapped in crossed.inputs:
            source = _match_rotated_halves(swapped)
            cosine, sine = find_other_operand(plain, source), find_other_operand(crossed, swapped)
            angle = _find_angles(cosine, "Cos") if source is not None else None
            if source is not None and angle is not None and angle is _find_angles(sine, "Sin"):
                return source, angle
    return None


def _match_rotated_halves(value: ir.Value | None) -> ir.Value | None:
    """Return x of ``(-upper half of x, lower half of x)``."""
    join = find_producer(value, "Concat")
    shape = shape_of(value)
    if join is None or shape is None or len(join.inputs) != 2 or len(shape) != 4:
        return None
    minus, low = find_producer(join.inputs[0], "Neg"), join.inputs[1]
    if minus is None or read_attribute(join, "axis", 0) not in (-1, 3) or shape[3] is None:
        return None
    upper, lower = _match_half(minus.inputs[0], shape[3]), _match_half(low, shape[3])
    if upper is None or lower is None or (upper[1], lower[1]) != (1, 0):
        return None
    return lower[0] if upper[0] is lower[0] else None


def _match_half(value: ir.Value | None, size: int | str) -> tuple[ir.Value, int] | None:
    """Return the tensor of which a value is one half of the last axis, and which one."""
    node = value.producer() if value is not None else None
    shape = shape_of(value)
    if node is None or node.domain or shape is None or not isinstance(size, int):
        return None
    source, last = node.inputs[0], shape[-1]
    if source is None or last != size // 2 or size % 2:
        return None
    if node.op_type == "Split" and read_attribute(node, "axis", 0) in (-1, 3):
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


def _find_angles(value: ir.Value | None, function: str) -> ir.Value | None:
    """Return the angles of one half behind ``unsqueeze(cos(concat(angle, angle)), 1)``."""
    raised = find_producer(value, "Unsqueeze")
    axes = const_array(raised.inputs[1]) if raised is not None else None
    wave = find_producer(raised.inputs[0], function) if raised is not None else None
    join = find_producer(wave.inputs[0], "Concat") if wave is not None else None
    if axes is None or axes.tolist() != [1] or join is None or len(join.inputs) != 2:
        return None
    angle = join.inputs[0]
    shape = shape_of(angle)
    if shape is None or len(shape) != 3 or read_attribute(join, "axis", 0) not in (-1, 2):
        return None
    return angle if join.inputs[1] is angle else None


_SPLIT = (0, 2, 1, 3)
_PACKED = (2, 0, 3, 1, 4)


@dataclass(frozen=True)
class Heads:
    """A tensor ``[batch, heads, length, size]`` and the factor that was peeled off it."""

    value: ir.Value  # the tensor, or with `split` the one of ``[batch, length, heads, size]``
    scale: float = 1.0  # it counted this many times
    split: bool = False  # its heads lie behind the length
    # With a packed tensor ``[batch, length, n, heads, size]``: which of the n.
    index: int | None = None
    past: ir.Value | None = None  # what was put in front of it, along the length
    joined: ir.Value | None = None  # the two together, which others may read
    # The angles of the rotary position embedding that was taken off it.
    turn: ir.Value | None = None
    groups: int = 1  # queries' heads that share one of these


def find_transposed_keys(value: ir.Value) -> Heads | None:
    """Return the keys behind ``[batch, heads, size, length]``; None when they are not found."""
    value, scale = _strip_factors(value)
    node = find_producer(value, "Transpose", "Reshape")
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Transpose":
        perm = tuple(read_attribute(node, "perm", ()))
        if perm == (0, 1, 3, 2):
            return _scale_heads(trace_heads(node.inputs[0]), scale)
        return Heads(node.inputs[0], scale, split=True) if perm == (0, 2, 3, 1) else None
    inner = find_producer(node.inputs[0], "Transpose")
    outer = find_producer(inner.inputs[0], "Reshape") if inner is not None else None
    if inner is None or outer is None or outer.inputs[0] is None:
        return None
    source, end = shape_of(outer.inputs[0]), shape_of(value)
    if tuple(read_attribute(inner, "perm", ())) != (0, 2, 1) or source is None or end is None:
        return None
    flat = shape_of(outer.outputs[0])
    same = len(source) == 4 and flat is not None and flat[1:] == source[2:]
    if same and end == (*source[:2], source[3], source[2]) and None not in source:
        return _scale_heads(trace_heads(outer.inputs[0]), scale)
    return None


def _scale_heads(source: Heads, scale: float) -> Heads:
    return replace(source, scale=source.scale * scale)


def trace_heads(value: ir.Value) -> Heads:
    """Peel factors, copies for groups, the past, rotation and the split off, in this order."""
    value, scale = _strip_factors(value)
    shared = _match_group_copies(value)
    if shared is not None:
        value, more = _strip_factors(shared[0])
        return replace(_trace_past(value), scale=scale * more, groups=shared[1])
    return replace(_trace_past(value), scale=scale)


def _trace_past(value: ir.Value) -> Heads:
    join = find_producer(value, "Concat")
    if join is not None and len(join.inputs) == 2 and read_attribute(join, "axis", 0) in (2, -2):
        past, new = join.inputs
        if past is not None and new is not None:
            return replace(_trace_rotation(new), past=past, joined=value)
    return _trace_rotation(value)


def _trace_rotation(value: ir.Value) -> Heads:
    rotation = split_rotation(value)
    if rotation is None:
        return _trace_split(value)
    source, turn = rotation
    return replace(_trace_split(source), turn=turn)


def _trace_split(value: ir.Value) -> Heads:
    node = find_producer(value, "Transpose")
    if node is not None and node.inputs[0] is not None:
        if tuple(read_attribute(node, "perm", ())) == _SPLIT:
            return Heads(node.inputs[0], split=True)
        return Heads(value)
    return _match_packed(value) or Heads(value)


def _match_group_copies(value: ir.Value) -> tuple[ir.Value, int] | None:
    """Return the heads that were each copied for a group of queries' heads, and how often."""
    merge = find_producer(value, "Reshape")
    spread = find_producer(merge.inputs[0], "Expand") if merge is not None else None
    raised = find_producer(spread.inputs[0], "Unsqueeze") if spread is not None else None
    source = raised.inputs[0] if raised is not None else None
    if spread is None or source is None:
        return None
    few, many, wide = (shape_of(tensor) for tensor in (source, value, spread.outputs[0]))
    if few is None or many is None or wide is None or len(few) != 4 or len(wide) != 5:
        return None
    heads_of, groups = few[1], wide[2]
    if not isinstance(heads_of, int) or not isinstance(groups, int) or None in few:
        return None
    copied = wide == (few[0], heads_of, groups, *few[2:])
    merged = many == (few[0], heads_of * groups, *few[2:])
    return (source, groups) if copied and merged else None


def _strip_factors(value: ir.Value) -> tuple[ir.Value, float]:
    scale = 1.0
    while (node := find_producer(value, "Mul", "Div")) is not None:
        first, second = node.inputs
        if node.op_type == "Mul" and read_scalar(first) is not None and scalar_for(first, second):
            first, second = second, first
        factor = read_scalar(second) if scalar_for(second, first) else None
        if first is None or not factor:
            break
        value, scale = first, scale * (factor if node.op_type == "Mul" else 1 / factor)
    return value, scale


def _match_packed(value: ir.Value) -> Heads | None:
    """One of the n of ``[n, batch, heads, length, size]``, cut out in whichever way."""
    cut = find_producer(value, "Squeeze", "Gather")
    if cut is None:
        return None
    if cut.op_type == "Gather":
        at = read_scalar(cut.inputs[1])
        index = cut.inputs[1]
        flat = index is not None and index.shape is not None and len(index.shape) == 0
        if read_attribute(cut, "axis", 0) != 0 or at is None or not flat:
            return None
        source, place = cut.inputs[0], int(at)
    else:
        axes = const_array(cut.inputs[1]) if len(cut.inputs) > 1 else None
        part = cut.inputs[0]
        maker_of = part.producer() if part is not None else None
        if axes is None or axes.tolist() != [0] or maker_of is None or maker_of.domain:
            return None
        piece = _locate_slice(maker_of, part)
        if piece is None:
            return None
        source, place = piece
    turn = find_producer(source, "Transpose")
    packed = turn.inputs[0] if turn is not None else None
    shape = shape_of(packed)
    if turn is None or packed is None or shape is None or not isinstance(shape[2], int):
        return None
    if tuple(read_attribute(turn, "perm", ())) != _PACKED:
        return None
    return Heads(packed, index=place % shape[2], split=True) if shape[2] else None


def _locate_slice(node: ir.Node, part: ir.Value | None) -> tuple[ir.Value | None, int] | None:
    """Return what a part of length one along the first axis was cut from, and where."""
    if node.op_type == "Split" and read_attribute(node, "axis", 0) == 0:
        shapes = [shape_of(tensor) for tensor in node.outputs]
        if all(shape is not None and shape[0] == 1 for shape in shapes):
            return node.inputs[0], node.outputs.index(part)
    if node.op_type == "Slice" and len(node.inputs) > 3:
        starts, ends, axes = (const_array(tensor) for tensor in node.inputs[1:4])
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

    def flatten_heads(self, source: Heads, count: int, size: int, at: ir.Node) -> ir.Value:
        """Return the flat tensor, turned again; new nodes are placed before `at`."""
        if source.index is not None:
            flat = self._split_packed(source, count * size, at)[source.index]
        else:
            flat = self._find_flat_source(source.value, count * size) or self._reshape_to_width(
                source.value, count * size, at
            )
        if source.turn is None:
            return flat
        tables = [self._add_rotary_table(flat, source.turn, op, at) for op in ("Cos", "Sin")]
        inputs, heads_of = [flat, *tables], {"num_heads": count}
        return self.editor.add_node(at, "RotaryEmbedding", inputs, heads_of, like=flat)

    def _add_rotary_table(
        self, value: ir.Value, angle: ir.Value, op: str, at: ir.Node
    ) -> ir.Value:
        """Return the cosines or sines for every row of the batch, which the kernel asks for."""
        editor = self.editor
        rows, shape = (shape_of(tensor) or (None,) for tensor in (value, angle))
        batch = rows[0]
        key = (op, angle, at.graph, batch if batch is not None else value)
        if key not in self.tables:
            table = editor.add_node(at, op, [angle], like=angle)
            if batch is None or shape[0] != batch:
                first, whole = {"start": 0, "end": 1}, ir.DataType.INT64
                size = editor.add_node(at, "Shape", [value], first, dtype=whole)
                unit_dims = editor.add_constant("rotary_ones", np.ones(2, np.int64))
                to = editor.add_node(at, "Concat", [size, unit_dims], {"axis": 0}, dtype=whole)
                table = editor.add_node(at, "Expand", [table, to], like=angle)
                table.shape = ir.Shape([batch, *shape[1:]])
            self.tables[key] = table
        return self.tables[key]

    def _split_packed(self, packed_heads: Heads, width: int, at: ir.Node) -> list[ir.Value]:
        key = (packed_heads.value, at.graph if isinstance(at.graph, ir.Graph) else None)
        if key not in self.cuts:
            shape = shape_of(packed_heads.value)
            parts = shape[2] if shape is not None and isinstance(shape[2], int) else 0
            source = self._find_flat_source(packed_heads.value, parts * width)
            whole = source or self._reshape_to_width(packed_heads.value, parts * width, at)
            cut = {"axis": -1, "num_outputs": parts}
            node = self.editor.make_node("Split", [whole], cut, outputs=parts)
            whole_shape = shape_of(whole)
            for value in node.outputs:
                value.type = whole.type
                if whole_shape is not None:
                    value.shape = ir.Shape([*whole_shape[:-1], width])
            insert_before(at, node)
            self.cuts[key] = list(node.outputs)
        return self.cuts[key]

    def _find_flat_source(self, value: ir.Value, width: int) -> ir.Value | None:
        """Return the tensor of three dimensions that a Reshape has only split the last one of."""
        node = find_producer(value, "Reshape")
        source = node.inputs[0] if node is not None else None
        before, after = (shape_of(tensor) for tensor in (source, value))
        if source is None or before is None or after is None or len(before) != 3:
            return None
        pairs = zip(before[:2], after, strict=False)
        kept = any(a == b and a not in (None, 0) for a, b in pairs)
        has_width = self.seen.get(source.name or "", ())[2:] == (width,)
        sizes = [size for size in after[2:] if isinstance(size, int)]
        fits = len(sizes) == len(after[2:]) and math.prod(sizes) == width
        return source if kept and has_width and fits else None

    def _reshape_to_width(self, value: ir.Value, width: int, at: ir.Node) -> ir.Value:
        flat, shape = add_reshape(self.editor, value, (0, 0, width), at), shape_of(value)
        if shape is not None:
            flat.shape = ir.Shape([shape[0], shape[1], width])
        return flat


def add_reshape(editor: Editor, value: ir.Value, to: tuple[int, ...], at: ir.Node) -> ir.Value:
    """Place a Reshape before `at` and return what it makes, without its shape."""
    target = editor.add_constant(f"{value.name}_to", np.array(to, np.int64))
    return editor.add_node(at, "Reshape", [value, target], dtype=value.dtype)
