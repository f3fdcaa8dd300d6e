"""Scaled dot-product attention in its parts becomes one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.io.write import light
from ortune.graph.ir import edit, prune
from ortune.graph.ir.edit import Editor
from ortune.graph.ir.match import nodes_of, reader
from ortune.graph.ir.replace import forward
from ortune.graph.ir.spec import dims, shape_of
from ortune.graph.ir.uses import is_read
from ortune.transforms.common.attention.heads import (
    Flattener,
    Heads,
    heads,
    reshaped,
    untransposed,
)
from ortune.transforms.common.attention.masks import (
    Core,
    Masks,
    NotFusable,
    find_attention,
    infinite,
    named,
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
    """Lowest default-domain opset that has the operator."""

    def applies(self, facts: Facts) -> bool:
        written = facts.has("Exp") and facts.has("ReduceMax") and facts.has("ReduceSum")
        return (facts.has("Softmax") or written) and facts.ops.get("MatMul", 0) >= 2

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Only onnxruntime's own kernels were measured to gain."""
        return "com.microsoft" in backend.domains

    def apply(self, model: ir.Model) -> int:
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        with named(model):
            editor = Editor(model.graph)
            writer = _Writer(model, Masks(editor), Flattener(editor, _seen(model)), editor)
            count = sum(_try(node, writer) for node in nodes_of(model, "Softmax"))
        if count or writer.masks.made:
            prune.drop_dead(model)
        return count


@dataclass(frozen=True)
class _Writer:
    model: ir.Model
    masks: Masks
    flattener: Flattener
    editor: Editor


def _seen(model: ir.Model) -> dict[str, tuple[int | str | None, ...]]:
    """Return what onnx's inference finds without the shapes that are noted in the model."""
    proto = light(model)
    del proto.graph.value_info[:]
    try:
        proto = onnx.shape_inference.infer_shapes(proto)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return {}
    found = {}
    for one in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        shape = dims(ir.serde.deserialize_type_proto_for_shape(one.type))
        if shape is not None:
            found[one.name] = shape
    return found


def _try(softmax: ir.Node, writer: _Writer) -> int:
    try:
        core = find_attention(softmax)
        if core is None:
            return 0
        parts, at = _parts(core), core.product
        if core.scale * parts.query.scale * parts.key.scale <= 0:
            raise NotFusable("its scale is not positive")
        size, last = parts.sizes
        flat = [
            writer.flattener.flat(parts.query, parts.count, size, at),
            writer.flattener.flat(parts.key, parts.few, size, at),
            writer.flattener.flat(parts.value, parts.few, last, at),
        ]
        past = [one for one in (parts.key.past, parts.value.past) if one is not None]
        plain = size == last and parts.few == parts.count
        contrib = bool(past) and plain and not (core.guarded and infinite(core.masks))
        keys = (core.value, 2)
        guarded, zeroes = core.guarded, not contrib
        mask = writer.masks.one(core.masks, flat[0], keys, at, guarded=guarded, zeroes=zeroes)
        scaled = {"scale": core.scale * parts.query.scale * parts.key.scale}
        if contrib:
            heads_of = {"num_heads": parts.count}
            op, domain, inputs = (
                "MultiHeadAttention",
                "com.microsoft",
                [*flat, None, None, mask, *past],
            )
        else:
            heads_of = {"q_num_heads": parts.count, "kv_num_heads": parts.few}
            op, domain = "Attention", ""
            inputs = [*flat, *([mask] if mask is not None or past else []), *past]
        node = writer.editor.node(
            op,
            inputs,
            heads_of | scaled,
            name=f"{at.name}_attention",
            domain=domain,
            outputs=3 if past else 1,
        )
        if contrib:
            writer.model.opset_imports.setdefault(domain, 1)
        made = node.outputs[0]
        made.type = core.query.type
        batch, length = (shape_of(core.query) or (None,) * 3)[0:3:2]
        made.shape = ir.Shape([batch, length, parts.count * last])
        edit.insert_before(at, node)
        _merge(core, made, parts, writer)
        if past:
            _present(parts, node, writer)
    except NotFusable as why:
        edit.refuse(writer.model, softmax, f"attention: {why}")
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


def _parts(core: Core) -> _Parts:
    """Split off what the operator does by itself.

    Raises:
        NotFusable: The tensors behind the heads are not found, or do not fit together.
    """
    query, key, value = heads(core.query), untransposed(core.key), heads(core.value)
    if key is None:
        raise NotFusable("how its keys are transposed is not known")
    if query.past is not None or (key.past is None) != (value.past is None):
        key, query, value = _whole(key), _whole(query), _whole(value)
    if value.scale != 1.0 or value.turn is not None:
        value = Heads(core.value)
    if key.groups != value.groups or query.groups != 1:
        raise NotFusable("its keys and values are copied in different ways")
    if not (query.split and key.split and value.split):
        raise NotFusable("its heads are not split off tensors of [batch, length, heads * size]")
    shapes = [shape_of(core.query), shape_of(core.key), shape_of(core.value)]
    if any(shape is None for shape in shapes):
        raise NotFusable("its shapes are not known")
    (qb, count, _, size), (kb, kh, _, _), (vb, vh, _, last) = (s for s in shapes if s is not None)
    if not (isinstance(count, int) and isinstance(size, int) and isinstance(last, int)):
        raise NotFusable("the number of its heads or their size is not known")
    if count != kh or count != vh or (1 in (qb, kb, vb) and not qb == kb == vb):
        raise NotFusable("its queries, keys and values differ in batch or heads")
    return _Parts(query, key, value, count, count // key.groups, (size, last))


def _whole(one: Heads) -> Heads:
    return one if one.past is None or one.joined is None else Heads(one.joined, one.scale)


def _present(parts: _Parts, node: ir.Node, writer: _Writer) -> None:
    """Let the model put out the keys and values that the kernel has joined.

    Where something else reads them the join stays: a mask may depend on its length.
    """
    prune.drop_dead(writer.model)
    for one, present in zip((parts.key, parts.value), node.outputs[1:], strict=True):
        if one.joined is None:
            continue
        present.type, present.shape = one.joined.type, one.joined.shape
        if not one.joined.uses():
            forward(one.joined, present)


def _merge(core: Core, made: ir.Value, parts: _Parts, writer: _Writer) -> None:
    """Let what reads the result read the operator's, whose heads are merged already."""
    result, at = core.product.outputs[0], core.product
    shape = (0, 0, parts.count, parts.sizes[1])
    turn = reader(result, "Transpose")
    if turn is None or tuple(edit.attribute(turn, "perm", ())) != (0, 2, 1, 3):
        split = reshaped(writer.editor, made, shape, at)
        known = shape_of(made)
        split.shape = ir.Shape([*known[:2], *shape[2:]]) if known is not None else None
        back = writer.editor.node("Transpose", [split], {"perm": (0, 2, 1, 3)})
        back.outputs[0].type, back.outputs[0].shape = result.type, result.shape
        edit.insert_before(at, back)
        forward(result, back.outputs[0])
        return
    turned = turn.outputs[0]
    for user in [node for node, _ in turned.uses()]:
        if user.op_type == "Reshape" and not user.domain and _merges(user, made):
            forward(user.outputs[0], made)
    if is_read(turned):
        split = reshaped(writer.editor, made, shape, at)
        split.shape = turned.shape
        forward(turned, split)


def _merges(node: ir.Node, made: ir.Value) -> bool:
    """Say whether a Reshape of the transposed result makes what the operator makes."""
    one, two = shape_of(node.outputs[0]), shape_of(made)
    if one is None or two is None or len(one) != 3 or one[2] != two[2]:
        return False
    return any(a == b and a not in (None, 0) for a, b in zip(one[:2], two[:2], strict=True))
