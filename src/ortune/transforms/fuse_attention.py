"""Scaled dot-product attention in its parts becomes one operator."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.io.write import serialize_without_weights
from ortune.graph.ir import edit, match, prune
from ortune.graph.ir.edit import Editor, const_array, insert_before, read_attribute, shape_of
from ortune.graph.ir.match import find_other_operand, find_producer, read_scalar, scalar_for
from ortune.transforms.common.attention import (
    Core,
    Masks,
    NotFusable,
    find_attention,
    has_infinity,
    name_unknown_lengths,
)


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


@dataclass(frozen=True)
class FuseAttention(Transform):
    """Write ``softmax(q k^T / sqrt d + mask) v`` over split heads as one operator.

    ::

        q = transpose(reshape(Q)), k and v likewise;   Y = reshape(transpose(...))
        Y = Attention(Q, K, V, mask)

    The kernel reads and writes the heads where they lie, so four transposes go, and scale and mask
    are part of the product. docs/rewriting.md has the figures. Scales are taken from wherever they
    are: query, key, both or scores. Packed projections are cut before they are transposed. A mask
    that layers share is made once.

    Exact up to the order of the operations, rows included in which everything is masked; but an
    empty batch or an empty sequence, which the parts let pass, is an error in the kernel.

    Needs opset 23; does nothing on older models (`raise-opset` lifts them).
    """

    stage: ClassVar[Stage] = Stage.FUSE
    needs_opset: ClassVar[int] = 23

    def applies(self, facts: Facts) -> bool:
        written = facts.has("Exp") and facts.has("ReduceMax") and facts.has("ReduceSum")
        return (facts.has("Softmax") or written) and facts.ops.get("MatMul", 0) >= 2

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Only onnxruntime's own kernels were measured to gain."""
        return "com.microsoft" in backend.domains

    def apply(self, model: ir.Model) -> int:
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        with name_unknown_lengths(model):
            editor = edit.Editor(model.graph)
            flattener = Flattener(editor, _infer_shapes_afresh(model))
            writer = _Writer(model, Masks(editor), flattener, editor)
            count = sum(_fuse_softmax(node, writer) for node in match.nodes_of(model, "Softmax"))
        if count or writer.masks.cache:
            prune.drop_dead(model)
        return count


@dataclass(frozen=True)
class _Writer:
    model: ir.Model
    masks: Masks
    flattener: Flattener
    editor: edit.Editor


def _infer_shapes_afresh(model: ir.Model) -> dict[str, tuple[int | str | None, ...]]:
    """Return what onnx's inference finds without the shapes that are noted in the model."""
    proto = serialize_without_weights(model)
    del proto.graph.value_info[:]
    try:
        proto = onnx.shape_inference.infer_shapes(proto)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return {}
    inferred = {}
    for value_info in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        shape = edit.list_dims(ir.serde.deserialize_type_proto_for_shape(value_info.type))
        if shape is not None:
            inferred[value_info.name] = shape
    return inferred


def _fuse_softmax(softmax: ir.Node, writer: _Writer) -> int:
    try:
        core = find_attention(softmax)
        if core is None:
            return 0
        parts, at = _split_core(core), core.product
        if core.scale * parts.query.scale * parts.key.scale <= 0:
            raise NotFusable("its scale is not positive")
        size, last = parts.sizes
        flat = [
            writer.flattener.flatten_heads(parts.query, parts.count, size, at),
            writer.flattener.flatten_heads(parts.key, parts.few, size, at),
            writer.flattener.flatten_heads(parts.value, parts.few, last, at),
        ]
        past = [v for v in (parts.key.past, parts.value.past) if v is not None]
        plain = size == last and parts.few == parts.count
        contrib = bool(past) and plain and not (core.guarded and has_infinity(core.masks))
        keys = (core.value, 2)
        mask = writer.masks.merge_masks(
            core.masks, flat[0], keys, at, guarded=core.guarded, zeroes=not contrib
        )
        scaled = {"scale": core.scale * parts.query.scale * parts.key.scale}
        if contrib:
            heads_of = {"num_heads": parts.count}
            op, domain = "MultiHeadAttention", "com.microsoft"
            inputs = [*flat, None, None, mask, *past]
        else:
            heads_of = {"q_num_heads": parts.count, "kv_num_heads": parts.few}
            op, domain = "Attention", ""
            inputs = [*flat, *([mask] if mask is not None or past else []), *past]
        name, outputs = f"{at.name}_attention", 3 if past else 1
        node = writer.editor.make_node(
            op, inputs, heads_of | scaled, name=name, domain=domain, outputs=outputs
        )
        if contrib:
            writer.model.opset_imports.setdefault(domain, 1)
        output = node.outputs[0]
        output.type = core.query.type
        batch, length = (edit.shape_of(core.query) or (None,) * 3)[0:3:2]
        output.shape = ir.Shape([batch, length, parts.count * last])
        edit.insert_before(at, node)
        _replace_merged_result(core, output, parts, writer)
        if past:
            # Let the model put out the keys and values that the kernel has joined. Where something
            # else reads them the join stays: a mask may depend on its length.
            prune.drop_dead(writer.model)
            for part, present in zip((parts.key, parts.value), node.outputs[1:], strict=True):
                if part.joined is None:
                    continue
                present.type, present.shape = part.joined.type, part.joined.shape
                if not part.joined.uses():
                    edit.redirect_uses(part.joined, present)
    except NotFusable as why:
        edit.note_refusal(writer.model, softmax, f"attention: {why}")
        return 0
    return 1


@dataclass(frozen=True)
class _Parts:
    query: Heads
    key: Heads
    value: Heads
    count: int
    few: int
    sizes: tuple[int, int]


def _split_core(core: Core) -> _Parts:
    """Split off what the operator does by itself; `NotFusable` where the parts do not fit."""
    query = trace_heads(core.query)
    key = find_transposed_keys(core.key)
    value = trace_heads(core.value)
    if key is None:
        raise NotFusable("how its keys are transposed is not known")
    if query.past is not None or (key.past is None) != (value.past is None):
        key, query, value = _join_past(key), _join_past(query), _join_past(value)
    if value.scale != 1.0 or value.turn is not None:
        value = Heads(core.value)
    if key.groups != value.groups or query.groups != 1:
        raise NotFusable("its keys and values are copied in different ways")
    if not (query.split and key.split and value.split):
        raise NotFusable("its heads are not split off tensors of [batch, length, heads * size]")
    shapes = [edit.shape_of(core.query), edit.shape_of(core.key), edit.shape_of(core.value)]
    if any(shape is None for shape in shapes):
        raise NotFusable("its shapes are not known")
    (qb, count, _, size), (kb, kh, _, _), (vb, vh, _, last) = (s for s in shapes if s is not None)
    if not (isinstance(count, int) and isinstance(size, int) and isinstance(last, int)):
        raise NotFusable("the number of its heads or their size is not known")
    if count != kh or count != vh or (1 in (qb, kb, vb) and not qb == kb == vb):
        raise NotFusable("its queries, keys and values differ in batch or heads")
    return _Parts(query, key, value, count, count // key.groups, (size, last))


def _join_past(source_heads: Heads) -> Heads:
    if source_heads.past is None or source_heads.joined is None:
        return source_heads
    return Heads(source_heads.joined, source_heads.scale)


def _replace_merged_result(core: Core, output: ir.Value, parts: _Parts, writer: _Writer) -> None:
    """Let what reads the result read the operator's, whose heads are merged already."""
    result, at = core.product.outputs[0], core.product
    shape = (0, 0, parts.count, parts.sizes[1])
    turn = match.find_consumer(result, "Transpose")
    if turn is None or tuple(edit.read_attribute(turn, "perm", ())) != (0, 2, 1, 3):
        split = add_reshape(writer.editor, output, shape, at)
        output_shape = edit.shape_of(output)
        split.shape = None if output_shape is None else ir.Shape([*output_shape[:2], *shape[2:]])
        perm = {"perm": (0, 2, 1, 3)}
        back = writer.editor.add_node(at, "Transpose", [split], perm, like=result)
        edit.redirect_uses(result, back)
        return
    turned = turn.outputs[0]
    for user in [node for node, _ in turned.uses()]:
        if user.op_type == "Reshape" and not user.domain and _merges_heads(user, output):
            edit.redirect_uses(user.outputs[0], output)
    if edit.is_read(turned):
        split = add_reshape(writer.editor, output, shape, at)
        split.shape = turned.shape
        edit.redirect_uses(turned, split)


def _merges_heads(node: ir.Node, output: ir.Value) -> bool:
    """Say whether a Reshape of the transposed result makes what the operator makes."""
    actual, expected = edit.shape_of(node.outputs[0]), edit.shape_of(output)
    if actual is None or expected is None or len(actual) != 3 or actual[2] != expected[2]:
        return False
    return any(
        a == b and a not in (None, 0) for a, b in zip(actual[:2], expected[:2], strict=True)
    )
