"""Scaled dot-product attention in its parts becomes one operator."""

from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.io.write import serialize_without_weights
from ortune.graph.ir import edit, match, prune
from ortune.transforms.common.attention import heads
from ortune.transforms.common.attention.masks import (
    Core,
    Masks,
    NotFusable,
    find_attention,
    has_infinity,
    name_unknown_lengths,
)


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
            flattener = heads.Flattener(editor, _infer_shapes_afresh(model))
            writer = _Writer(model, Masks(editor), flattener, editor)
            count = sum(_fuse_softmax(node, writer) for node in match.nodes_of(model, "Softmax"))
        if count or writer.masks.cache:
            prune.drop_dead(model)
        return count


@dataclass(frozen=True)
class _Writer:
    model: ir.Model
    masks: Masks
    flattener: heads.Flattener
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
    query: heads.Heads
    key: heads.Heads
    value: heads.Heads
    count: int
    few: int
    sizes: tuple[int, int]


def _split_core(core: Core) -> _Parts:
    """Split off what the operator does by itself; `NotFusable` where the parts do not fit."""
    query = heads.trace_heads(core.query)
    key = heads.find_transposed_keys(core.key)
    value = heads.trace_heads(core.value)
    if key is None:
        raise NotFusable("how its keys are transposed is not known")
    if query.past is not None or (key.past is None) != (value.past is None):
        key, query, value = _join_past(key), _join_past(query), _join_past(value)
    if value.scale != 1.0 or value.turn is not None:
        value = heads.Heads(core.value)
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


def _join_past(source_heads: heads.Heads) -> heads.Heads:
    if source_heads.past is None or source_heads.joined is None:
        return source_heads
    return heads.Heads(source_heads.joined, source_heads.scale)


def _replace_merged_result(core: Core, output: ir.Value, parts: _Parts, writer: _Writer) -> None:
    """Let what reads the result read the operator's, whose heads are merged already."""
    result, at = core.product.outputs[0], core.product
    shape = (0, 0, parts.count, parts.sizes[1])
    turn = match.find_consumer(result, "Transpose")
    if turn is None or tuple(edit.read_attribute(turn, "perm", ())) != (0, 2, 1, 3):
        split = heads.add_reshape(writer.editor, output, shape, at)
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
        split = heads.add_reshape(writer.editor, output, shape, at)
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
