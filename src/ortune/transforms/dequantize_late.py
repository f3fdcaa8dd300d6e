"""Constants stay integers until the numbers that are needed have been picked or moved."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, prune, qdq


@dataclass(frozen=True)
class DequantizeLate(Transform):
    """Exact: DequantizeLinear of a constant goes behind Gather, Transpose and Reshape into it.

    In front of a Gather it makes the whole embedding table float in every inference (16 % of
    MiniLM); behind it only the rows that were found. A Transpose or Reshape between an integer
    weight and its layer is done to the stored integers: with it in between, no integer kernel
    takes the layer.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    consumes = (("DequantizeLinear", "com.microsoft::DequantizeLinear"),)

    def apply(self, model: ir.Model) -> int:
        return prune.edit_nodes(model, _move_behind)


def _move_behind(editor: edit.Editor, node: ir.Node) -> bool:
    mover = _MOVERS.get(node.op_type)
    if mover is None or node.domain or not node.inputs:
        return False
    wide = qdq.find_runtime_producer(node.inputs[0], "DequantizeLinear")
    if wide is None or wide.graph is not editor.graph or edit.is_overridable(wide.inputs[0]):
        return False
    grid, table = qdq.read_grid(wide), edit.const_tensor(wide.inputs[0])
    return grid is not None and table is not None and mover(editor, node, wide, grid)


def _look_up(editor: edit.Editor, node: ir.Node, wide: ir.Node, grid: qdq.ConstantGrid) -> bool:
    table, rows = wide.inputs[0], node.inputs[1]
    tensor = edit.const_tensor(table)
    assert tensor is not None and table is not None
    rank = len(tensor.shape)
    picked = int(edit.read_attribute(node, "axis", 0)) % rank
    axis = grid.axis % rank
    result = node.outputs[0]
    attributes = dict(wide.attributes)
    if not grid.single:
        shape = rows.shape if rows is not None else None
        if axis == picked:
            return False
        # Counted from the end the axis stays; before the indices it does not move either.
        moved = axis if axis < picked else axis - rank
        if moved < 0 and shape is None and wide.version is not None and wide.version < 13:
            return False
        attributes["axis"] = ir.AttrInt64("axis", moved)
    else:
        attributes.pop("axis", None)
    ints = editor.make_node(
        "Gather", [table, rows], dict(node.attributes), name=f"{result.name}_int"
    )
    ints.outputs[0].shape, ints.outputs[0].dtype = result.shape, tensor.dtype
    return _dequantize(editor, node, wide, attributes, ints.outputs[0], ints)


def _move_layout(
    editor: edit.Editor, node: ir.Node, wide: ir.Node, grid: qdq.ConstantGrid
) -> bool:
    array = edit.const_array(wide.inputs[0])
    target = edit.const_array(qdq.find_input(node, 1))
    if array is None or node.outputs[0].is_graph_output():
        return False
    attributes = dict(wide.attributes)
    if node.op_type == "Transpose":
        order = tuple(edit.read_attribute(node, "perm", range(array.ndim)[::-1]))
        moved_array = np.ascontiguousarray(array.transpose(order))
        if not grid.single:
            axis = order.index(grid.axis % array.ndim)
            attributes["axis"] = ir.AttrInt64("axis", axis)
    elif target is not None and grid.single and not edit.is_overridable(qdq.find_input(node, 1)):
        zeros = not edit.read_attribute(node, "allowzero", 0)
        shape = [
            array.shape[i] if zeros and item == 0 else int(item) for i, item in enumerate(target)
        ]
        moved_array = array.reshape(shape)
    else:
        return False
    stem = str(wide.inputs[0].name) if wide.inputs[0] is not None else "weight"
    constant = editor.add_constant(f"{stem}_moved", moved_array)
    return _dequantize(editor, node, wide, attributes, constant)


def _dequantize(
    editor: edit.Editor,
    node: ir.Node,
    wide: ir.Node,
    attributes: dict[str, ir.Attr],
    integers: ir.Value,
    *before: ir.Node,
) -> bool:
    """Put a DequantizeLinear of integers in the place of a node, under its result's name."""
    name, inputs = node.outputs[0].name, [integers, *wide.inputs[1:]]
    late = editor.make_node(
        "DequantizeLinear", inputs, attributes, name=f"{name}_dq", domain=wide.domain
    )
    edit.replace_node(node, *before, late)
    late.outputs[0].name = name
    return True


_MOVERS = {"Gather": _look_up, "Transpose": _move_layout, "Reshape": _move_layout}
