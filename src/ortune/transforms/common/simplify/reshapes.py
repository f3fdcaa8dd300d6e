"""Nodes that move no number: joined where one does what two did."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit, match
from ortune.graph.shapes.known_values import Item, SymbolicValues

RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def merge_pairs(model: ir.Model, symbolic_values: SymbolicValues) -> int:
    """Join Transpose with Transpose and what reshapes with what reshapes; return how many.

    ::

        transpose(transpose(x, p), q) = transpose(x, p[q])
        reshape(reshape(x, s), t)     = reshape(x, t)          where t copies no dimension of s
        unsqueeze(squeeze(x, a), a)   = x = squeeze(unsqueeze(x, a), a)

    Two Squeeze or two Unsqueeze become one. Two others of RESHAPES become one Reshape where the
    shape behind them can be written with at most one size that is only known in a run.
    """
    editor = edit.Editor(model.graph)
    opset = model.opset_imports.get("", 0)
    count = 0
    for node in edit.walk_nodes(model):
        if node.domain or node.graph is None or not node.inputs:
            continue
        if node.op_type == "Transpose":
            count += _merge_transposes(node)
        elif node.op_type in RESHAPES:
            count += _merge_reshapes(node, symbolic_values, editor, opset)
    return count


def _merge_transposes(node: ir.Node) -> int:
    before = match.find_producer(node.inputs[0], "Transpose")
    if before is None or before.inputs[0] is None:
        return 0
    first, second = permutation(before), permutation(node)
    if first is None or second is None:
        return 0
    node.attributes["perm"] = ir.AttrInt64s("perm", [first[i] for i in second])
    node.replace_input_with(0, before.inputs[0])
    return 1


def permutation(node: ir.Node) -> tuple[int, ...] | None:
    """Return a Transpose's order of axes; the default, all backwards, needs the rank."""
    perm = edit.read_attribute(node, "perm", None)
    if perm is not None:
        return tuple(perm)
    source = node.inputs[0]
    shape = edit.shape_of(source)
    return tuple(reversed(range(len(shape)))) if shape is not None else None


def _merge_reshapes(
    node: ir.Node, symbolic_values: SymbolicValues, editor: edit.Editor, opset: int
) -> int:
    before = match.find_producer(node.inputs[0], *RESHAPES)
    source = before.inputs[0] if before is not None else None
    if before is None or source is None:
        return 0
    input_shape, output_shape = edit.shape_of(source), edit.shape_of(node.outputs[0])
    same = input_shape is not None and input_shape == output_shape and None not in input_shape
    if same or _undoes(node, before, symbolic_values):
        if not edit.redirect_uses(node.outputs[0], source):
            return 0
        edit.remove_node(node)
        return 1
    if node.op_type == "Reshape" and _forgets(node):
        node.replace_input_with(0, source)
        return 1
    if len(edit.list_readers(before.outputs[0], 2)) > 1 or before.outputs[0].is_graph_output():
        return 0
    return _merge_axes(node, before, symbolic_values, editor) or (
        _merge_into_reshape(node, source, editor, opset) if opset >= 5 else 0
    )


def _undoes(node: ir.Node, before: ir.Node, symbolic_values: SymbolicValues) -> bool:
    if {node.op_type, before.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    shape = edit.shape_of(before.inputs[0])
    rank = len(shape) if shape is not None else None
    first, second = _read_axes(before, symbolic_values), _read_axes(node, symbolic_values)
    if first is None or second is None:
        return False
    if set(first) == set(second) and min(first, default=0) >= 0:
        return True
    if rank is None:
        return False
    wide = rank + len(first) if before.op_type == "Unsqueeze" else rank
    return {axis % wide for axis in first} == {axis % wide for axis in second}


def _forgets(node: ir.Node) -> bool:
    """Say whether the target is constant and copies no dimension of the tensor before."""
    second = node.inputs[1] if len(node.inputs) > 1 else None
    to = edit.const_array(second)
    if to is None or edit.is_overridable(second):
        return False
    return bool(edit.read_attribute(node, "allowzero", 0)) or not (to == 0).any()


def _read_axes(node: ir.Node, symbolic_values: SymbolicValues) -> Sequence[int] | None:
    """Return what a Squeeze or Unsqueeze names; None where it names nothing constant."""
    axes = edit.read_attribute(node, "axes", None)
    if axes is not None:
        return tuple(axes)
    part = symbolic_values.read_partial(node.inputs[1]) if len(node.inputs) > 1 else None
    if part is None or not part.whole:
        return None
    return tuple(item for item in part.items if isinstance(item, int))


def _merge_axes(
    node: ir.Node, before: ir.Node, symbolic_values: SymbolicValues, editor: edit.Editor
) -> int:
    """One Unsqueeze does what two did, and one Squeeze."""
    if node.op_type != before.op_type or node.op_type not in ("Squeeze", "Unsqueeze"):
        return 0
    outer, inner = (edit.shape_of(v) for v in (node.outputs[0], before.inputs[0]))
    before_axes, node_axes = _read_axes(before, symbolic_values), _read_axes(node, symbolic_values)
    if outer is None or inner is None or before.inputs[0] is None:
        return 0
    if before_axes is None or node_axes is None:
        return 0
    middle = len(inner) + len(before_axes) * (1 if node.op_type == "Unsqueeze" else -1)
    wide, first, second = (
        (len(outer), node_axes, before_axes)
        if node.op_type == "Unsqueeze"
        else (len(inner), before_axes, node_axes)
    )
    first_axes = {axis % wide for axis in first}
    remaining_axes = [axis for axis in range(wide) if axis not in first_axes]
    joined = sorted(first_axes | {remaining_axes[axis % middle] for axis in second})
    node.replace_input_with(0, before.inputs[0])
    if "axes" in node.attributes:
        node.attributes["axes"] = ir.AttrInt64s("axes", joined)
    else:
        constant = editor.add_constant(f"{node.name}_axes", np.array(joined, np.int64))
        node.replace_input_with(1, constant)
    return 1


def _merge_into_reshape(node: ir.Node, source: ir.Value, editor: edit.Editor, opset: int) -> int:
    """Write the shape behind both: as axes added, or by copying sizes that have only a name."""
    op, numbers = "Reshape", plain_target(edit.shape_of(source), edit.shape_of(node.outputs[0]))
    if numbers is None and opset >= 13:
        op, numbers = (
            "Unsqueeze",
            find_added_axes(edit.shape_of(source), edit.shape_of(node.outputs[0])),
        )
    if numbers is None:
        return 0
    constant = editor.add_constant(f"{node.name}_to", np.array(numbers, np.int64))
    reshape = editor.make_node(op, [source, constant], name=f"{node.name}_{op.lower()}")
    reshape.outputs[0].type = source.type
    return int(edit.replace_node(node, reshape))


def plain_target(
    source: Sequence[Item] | None, target_shape: Sequence[Item] | None
) -> list[int] | None:
    """Return a Reshape's target that serves empty tensors too; None where there is none.

    A size known by name is 0 (copied) where the source has it in the same place, one other is -1;
    beside a -1 stand only numbers above 0, as with an empty dimension it could be anything.
    """
    if source is None or target_shape is None:
        return None
    target = make_copy_target(source, target_shape)
    if 0 in [item for item in target_shape if isinstance(item, int)]:
        return None
    if target.count(-1) > 1 or (-1 in target and 0 in target):
        return None
    return target


def make_copy_target(source: Sequence[Item], target_shape: Sequence[Item]) -> list[int]:
    """Return numbers as they are, 0 for a name in the source's own place, -1 for what is left."""
    named = [*source, *[None] * len(target_shape)]
    return [
        item if isinstance(item, int) else 0 if item is not None and item == old else -1
        for item, old in zip(target_shape, named, strict=False)
    ]


def find_added_axes(
    source: Sequence[Item] | None, target_shape: Sequence[Item] | None
) -> list[int] | None:
    """Return the axes that an Unsqueeze adds to get from one shape to the other, if one can."""
    if source is None or target_shape is None or None in source or None in target_shape:
        return None
    added, remaining_dims = [], list(source)
    for axis, item in enumerate(target_shape):
        fits = len(target_shape) - axis >= len(remaining_dims)
        if remaining_dims and remaining_dims[0] == item and fits:
            remaining_dims.pop(0)
        elif item == 1:
            added.append(axis)
        else:
            return None
    return added if not remaining_dims else None
