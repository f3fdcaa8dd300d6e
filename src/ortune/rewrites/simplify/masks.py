"""Masks that exporters compute number by number, and that only hand an input on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortune.model.graph.edit import Editor, attribute, every_node
from ortune.model.graph.match import maker
from ortune.model.graph.replace import forward, remove, replace
from ortune.model.graph.spec import shape_of
from ortune.model.shapes.index_arithmetic import Index, always, index_of
from ortune.model.shapes.known_values import Item, Known
from ortune.model.shapes.named_dims import ELEMENTWISE, UNARY, broadcast, expanded
from ortune.rewrites.simplify.reshapes import added_axes

_FIRST = 7
"""Opset from which element-wise operators broadcast both ways."""


def settle_masks(model: ir.Model, known: Known) -> int:
    """Take the long way round out of attention masks; return how many nodes went.

    ::

        gather_nd(x, (i, j))[b, 0, 0, s] with i = b, j = s    is x with two axes more
        gather(flatten(x), b * length + s)                    likewise
        (position >= 0) and x                                 is x, wider perhaps
        expand(x)                                             is x, where all that reads it
                                                              broadcasts it as wide by itself

    minilm by the tracing exporter is left with 4 nodes for its mask instead of 22.
    """
    opset = model.opset_imports.get("", 0)
    if opset < _FIRST:
        return 0
    editor = Editor(model.graph)
    count = 0
    for node in every_node(model):
        if node.domain or node.graph is None:
            continue
        if node.op_type == "And":
            count += _true(node, known)
        elif node.op_type == "Expand":
            count += _narrow(node, node.inputs[0], known)
        elif node.op_type in ("GatherND", "Gather"):
            source = _taken(node, known)
            count += _view(node, source, editor, opset) if source is not None else 0
    return count


def _true(node: ir.Node, known: Known) -> int:
    for condition, value in (node.inputs, tuple(reversed(node.inputs))):
        maker_of = condition.producer() if condition is not None else None
        if maker_of is not None and always(maker_of, known) and _narrow(node, value, known):
            return 1
    return 0


def _narrow(node: ir.Node, value: ir.Value | None, known: Known) -> int:
    """Forward `value`, whose result is only broadcast, where no reader sees the difference."""
    wide, narrow = shape_of(node.outputs[0]), shape_of(value)
    if value is None or wide is None or narrow is None or None in wide or None in narrow:
        return 0
    shapes: dict[ir.Value, Sequence[Item]] = {}
    if wide != narrow and not _absorbed(node.outputs[0], wide, narrow, known, shapes):
        return 0
    if not forward(node.outputs[0], value):
        return 0
    remove(node)
    for changed, shape in shapes.items():
        changed.shape = ir.Shape(shape)
    return 1


def _absorbed(
    value: ir.Value,
    wide: Sequence[Item],
    narrow: Sequence[Item],
    known: Known,
    shapes: dict[ir.Value, Sequence[Item]],
) -> bool:
    """Say whether all readers make the same of the narrow form; note what becomes narrower."""
    if value.is_graph_output():
        return False
    for node in dict.fromkeys(user for user, _ in value.uses()):
        after = _after(node, value, narrow, known)
        before = shape_of(node.outputs[0]) if after is not None else None
        if after is None or before is None or None in before or None in after:
            return False
        if list(after) == list(before):
            continue
        shapes[node.outputs[0]] = after
        if not _absorbed(node.outputs[0], before, after, known, shapes):
            return False
    return True


def _after(
    node: ir.Node, value: ir.Value, narrow: Sequence[Item], known: Known
) -> Sequence[Item] | None:
    """Return a reader's shape with the narrow form; None for what may not read it."""
    if node.domain:
        return None
    if node.op_type in UNARY and node.inputs[0] is value:
        return narrow
    if node.op_type == "Expand" and node.inputs[0] is value and node.inputs[1] is not value:
        to = known.part(node.inputs[1])
        return expanded(narrow, to.items) if to is not None else None
    if node.op_type not in ELEMENTWISE:
        return None
    shapes = [narrow if one is value else shape_of(one) for one in node.inputs]
    given = [shape for shape in shapes if shape is not None]
    return broadcast(given) if len(given) == len(shapes) else None


def _taken(node: ir.Node, known: Known) -> ir.Value | None:
    """Return the tensor whose numbers a Gather gives in their own order."""
    if node.op_type == "GatherND":
        return _by_axes(node, known)
    flat = maker(node.inputs[0], "Flatten", "Reshape")
    source = flat.inputs[0] if flat is not None else None
    shape = shape_of(source)
    if flat is None or shape is None or len(shape) != 2 or attribute(node, "axis", 0) != 0:
        return None
    if flat.op_type == "Flatten":
        row = attribute(flat, "axis", 1) == 2
    else:
        to = known.part(flat.inputs[1])
        row = to is not None and to.items == (-1,)
    found = index_of(node.inputs[1], known)
    if not row or found is None or found.offset:
        return None
    factors: list[Item] = [shape[1], 1]
    wanted = {dim: factor for dim, factor in zip((0, 1), factors, strict=True) if shape[dim] != 1}
    if sorted(map(str, wanted.values())) != sorted(map(str, found.terms.values())):
        return None
    axes = []
    for axis in sorted(found.terms):
        dim = next((d for d, factor in wanted.items() if factor == found.terms[axis]), None)
        if dim is None:
            return None
        axes.append((dim, axis))
    return source if _in_order(axes, shape, node.inputs[1]) else None


def _by_axes(node: ir.Node, known: Known) -> ir.Value | None:
    source, joined = node.inputs[0], maker(node.inputs[1], "Concat")
    shape = shape_of(source)
    at = shape_of(node.inputs[1])
    if source is None or joined is None or shape is None or at is None:
        return None
    whole = attribute(joined, "axis", 0) in (-1, len(at) - 1) and len(joined.inputs) == len(shape)
    if not whole or attribute(node, "batch_dims", 0):
        return None
    axes = []
    for dim, value in enumerate(joined.inputs):
        found = index_of(value, known)
        part = shape_of(value)
        if found is None or part is None or part[-1] != 1:
            return None
        if found == Index() and shape[dim] == 1:
            continue
        if found.counts is None:
            return None
        axes.append((dim, found.counts))
    return source if _in_order(axes, shape, node.outputs[0]) else None


def _in_order(
    axes: Sequence[tuple[int, int]], shape: Sequence[Item], indices: ir.Value | None
) -> bool:
    """Say whether the positions run over all of the tensor, axis after axis, and nothing else."""
    out = shape_of(indices)
    if out is None or None in out:
        return False
    places = [place for _, place in axes]
    if places != sorted(set(places)) or [dim for dim, _ in axes] != sorted(dim for dim, _ in axes):
        return False
    if any(shape[dim] != out[place] for dim, place in axes):
        return False
    left = [dim for dim in range(len(shape)) if dim not in {d for d, _ in axes}]
    alone = [place for place in range(len(out)) if place not in places]
    return all(shape[dim] == 1 for dim in left) and all(out[place] == 1 for place in alone)


def _view(node: ir.Node, source: ir.Value, editor: Editor, opset: int) -> int:
    """Put an Unsqueeze in the place of a Gather that keeps all numbers in order."""
    axes = added_axes(shape_of(source), shape_of(node.outputs[0]))
    if axes is None or node.graph is None:
        return 0
    if opset < 13:
        made = editor.node("Unsqueeze", [source], {"axes": axes}, name=f"{node.name}_view")
    else:
        constant = editor.constant(f"{node.name}_axes", np.array(axes, np.int64))
        made = editor.node("Unsqueeze", [source, constant], name=f"{node.name}_view")
    return int(replace(node, made))
