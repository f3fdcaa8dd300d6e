"""Nodes that move no number: joined where one does what two did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortune.graph.ir.edit import Editor, attribute, const_array, every_node
from ortune.graph.ir.match import maker
from ortune.graph.ir.replace import forward, remove, replace
from ortune.graph.ir.spec import shape_of
from ortune.graph.ir.values import overridable
from ortune.graph.shapes.known_values import Item, Known

RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def merge_pairs(model: ir.Model, known: Known) -> int:
    """Join Transpose with Transpose and what reshapes with what reshapes; return how many.

    ::

        transpose(transpose(x, p), q) = transpose(x, p[q])
        reshape(reshape(x, s), t)     = reshape(x, t)          where t copies no dimension of s
        unsqueeze(squeeze(x, a), a)   = x = squeeze(unsqueeze(x, a), a)

    Two Squeeze or two Unsqueeze become one. Two others of RESHAPES become one Reshape where the
    shape behind them can be written with at most one size that is only known in a run.
    """
    editor = Editor(model.graph)
    opset = model.opset_imports.get("", 0)
    count = 0
    for node in every_node(model):
        if node.domain or node.graph is None or not node.inputs:
            continue
        if node.op_type == "Transpose":
            count += _transposes(node)
        elif node.op_type in RESHAPES:
            count += _reshapes(node, known, editor, opset)
    return count


def _transposes(node: ir.Node) -> int:
    before = maker(node.inputs[0], "Transpose")
    if before is None or before.inputs[0] is None:
        return 0
    one, two = permutation(before), permutation(node)
    if one is None or two is None:
        return 0
    node.attributes["perm"] = ir.AttrInt64s("perm", [one[i] for i in two])
    node.replace_input_with(0, before.inputs[0])
    return 1


def permutation(node: ir.Node) -> tuple[int, ...] | None:
    """Return a Transpose's order of axes; the default, all backwards, needs the rank."""
    perm = attribute(node, "perm", None)
    if perm is not None:
        return tuple(perm)
    source = node.inputs[0]
    shape = shape_of(source)
    return tuple(reversed(range(len(shape)))) if shape is not None else None


def _reshapes(node: ir.Node, known: Known, editor: Editor, opset: int) -> int:
    before = maker(node.inputs[0], *RESHAPES)
    source = before.inputs[0] if before is not None else None
    if before is None or source is None:
        return 0
    if _undoes(node, before, known) or _unchanged(node, source):
        if not forward(node.outputs[0], source):
            return 0
        remove(node)
        return 1
    if node.op_type == "Reshape" and _forgets(node):
        node.replace_input_with(0, source)
        return 1
    if len({reader for reader, _ in before.outputs[0].uses()}) > 1:
        return 0
    if before.outputs[0].is_graph_output():
        return 0
    return _joined_axes(node, before, known, editor) or (
        _one_reshape(node, source, editor, opset) if opset >= 5 else 0
    )


def _undoes(node: ir.Node, before: ir.Node, known: Known) -> bool:
    if {node.op_type, before.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    shape = shape_of(before.inputs[0])
    rank = len(shape) if shape is not None else None
    one, two = _axes(before, known), _axes(node, known)
    if one is None or two is None:
        return False
    if set(one) == set(two) and min(one, default=0) >= 0:
        return True
    if rank is None:
        return False
    wide = rank + len(one) if before.op_type == "Unsqueeze" else rank
    return {axis % wide for axis in one} == {axis % wide for axis in two}


def _unchanged(node: ir.Node, source: ir.Value) -> bool:
    one, two = shape_of(source), shape_of(node.outputs[0])
    return one is not None and one == two and None not in one


def _forgets(node: ir.Node) -> bool:
    """Say whether the target is constant and copies no dimension of the tensor before."""
    second = node.inputs[1] if len(node.inputs) > 1 else None
    to = const_array(second)
    if to is None or overridable(second):
        return False
    return bool(attribute(node, "allowzero", 0)) or not (to == 0).any()


def _axes(node: ir.Node, known: Known) -> Sequence[int] | None:
    """Return what a Squeeze or Unsqueeze names; None where it names nothing constant."""
    given = attribute(node, "axes", None)
    if given is not None:
        return tuple(given)
    part = known.part(node.inputs[1]) if len(node.inputs) > 1 else None
    if part is None or not part.whole:
        return None
    return tuple(item for item in part.items if isinstance(item, int))


def _joined_axes(node: ir.Node, before: ir.Node, known: Known, editor: Editor) -> int:
    """One Unsqueeze does what two did, and one Squeeze."""
    if node.op_type != before.op_type or node.op_type not in ("Squeeze", "Unsqueeze"):
        return 0
    outer, inner = (shape_of(v) for v in (node.outputs[0], before.inputs[0]))
    one, two = _axes(before, known), _axes(node, known)
    if outer is None or inner is None or one is None or two is None or before.inputs[0] is None:
        return 0
    middle = len(inner) + len(one) * (1 if node.op_type == "Unsqueeze" else -1)
    wide, first, second = (
        (len(outer), two, one) if node.op_type == "Unsqueeze" else (len(inner), one, two)
    )
    taken = {axis % wide for axis in first}
    left = [axis for axis in range(wide) if axis not in taken]
    joined = sorted(taken | {left[axis % middle] for axis in second})
    node.replace_input_with(0, before.inputs[0])
    if "axes" in node.attributes:
        node.attributes["axes"] = ir.AttrInt64s("axes", joined)
    else:
        node.replace_input_with(
            1, editor.constant(f"{node.name}_axes", np.array(joined, np.int64))
        )
    return 1


def _one_reshape(node: ir.Node, source: ir.Value, editor: Editor, opset: int) -> int:
    """Write the shape behind both: as axes added, or by copying sizes that have only a name."""
    op, numbers = "Reshape", plain_target(shape_of(source), shape_of(node.outputs[0]))
    if numbers is None and opset >= 13:
        op, numbers = "Unsqueeze", added_axes(shape_of(source), shape_of(node.outputs[0]))
    if numbers is None:
        return 0
    constant = editor.constant(f"{node.name}_to", np.array(numbers, np.int64))
    made = editor.node(op, [source, constant], name=f"{node.name}_{op.lower()}")
    made.outputs[0].type = source.type
    return int(replace(node, made))


def plain_target(source: Sequence[Item] | None, wanted: Sequence[Item] | None) -> list[int] | None:
    """Return a Reshape's target that serves empty tensors too; None where there is none.

    A size known by name is 0 (copied) where the source has it in the same place, one other is -1;
    beside a -1 stand only numbers above 0, as with an empty dimension it could be anything.
    """
    if source is None or wanted is None:
        return None
    target = copied_target(source, wanted)
    if 0 in [item for item in wanted if isinstance(item, int)]:
        return None
    if target.count(-1) > 1 or (-1 in target and 0 in target):
        return None
    return target


def copied_target(source: Sequence[Item], wanted: Sequence[Item]) -> list[int]:
    """Return numbers as they are, 0 for a name in the source's own place, -1 for what is left."""
    named = [*source, *[None] * len(wanted)]
    return [
        item if isinstance(item, int) else 0 if item is not None and item == old else -1
        for item, old in zip(wanted, named, strict=False)
    ]


def added_axes(source: Sequence[Item] | None, wanted: Sequence[Item] | None) -> list[int] | None:
    """Return the axes that an Unsqueeze adds to get from one shape to the other, if one can."""
    if source is None or wanted is None or None in source or None in wanted:
        return None
    added, left = [], list(source)
    for axis, item in enumerate(wanted):
        if left and left[0] == item and len(wanted) - axis >= len(left):
            left.pop(0)
        elif item == 1:
            added.append(axis)
        else:
            return None
    return added if not left else None
