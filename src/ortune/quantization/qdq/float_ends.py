"""Keeps what reads a matrix product from keeping it out of its integer kernel.

onnxruntime's CPU provider takes a product between pairs only with everything behind it
(qdq_selectors.cc, GetQDQSelection and CheckQDQNodes). Its kernel writes

- integers, where one QuantizeLinear reads the product and nothing else does, or a Relu or Clip
  whose only reader is a QuantizeLinear with a grid that cuts as much;
- floats, where no QuantizeLinear reads it, nor a Relu or Clip that one node reads.

In every other case the product stays in float, and its weight is made float in every run: slower
than no pair at all. A Sum of one behind the product takes the readers on itself, and what it
copies is small beside that.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortune.model.graph import edit, qdq
from ortune.model.graph.uses import alone, only_reader
from ortune.quantization.layers import Layer
from ortune.quantization.qdq.nodes import sum_of_one
from ortune.quantization.qdq.qoperators import repeats
from ortune.quantization.replace import take_output

_CUTS = ("Relu", "Clip")


def part(editor: edit.Editor, layers: Iterable[Layer]) -> int:
    """Put a Sum of one behind every product that its readers would keep in float.

    Args:
        layers: Between their pairs already.

    Returns:
        How many were.
    """
    ends = [_end(layer.node) for layer in layers if not layer.convolves]
    wrong = [end for end in dict.fromkeys(ends) if not _taken(end)]
    for end in wrong:
        home, uses = end.graph, tuple(end.uses())
        whole = sum_of_one(editor, end, "parted")
        for node, index in uses:
            node.replace_input_with(index, whole)
        if end.is_graph_output():
            assert home is not None
            take_output(editor, home, end, whole)
    return len(wrong)


def _end(node: ir.Node) -> ir.Value:
    """Return what the product writes: onnxruntime joins a MatMul of matrices and an Add to one."""
    value = node.outputs[0]
    reader, shape = only_reader(value), value.shape
    joined = node.op_type == "MatMul" and shape is not None and len(shape) == 2
    if joined and reader is not None and reader.op_type == "Add" and not reader.domain:
        return reader.outputs[0]
    return value


def _taken(value: ir.Value) -> bool:
    """Say whether onnxruntime takes a product that writes a value."""
    reader = only_reader(value)
    if any(_quantizes(use.node) for use in value.uses()):
        return reader is not None
    if reader is None or reader.op_type not in _CUTS or reader.domain:
        return True
    cut = reader.outputs[0]
    if not alone(cut):
        return True
    behind = only_reader(cut)
    if behind is None or not _quantizes(behind):
        return False
    grid = qdq.grid(behind)
    return grid is not None and grid.single and repeats(reader, grid)


def _quantizes(node: ir.Node) -> bool:
    return node.op_type == "QuantizeLinear" and qdq.ours(node)
