"""Quantize / dequantize pairs that compute nothing: weights stored in float, doubled pairs."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, prune, qdq


@dataclass(frozen=True)
class TidyPairs(Transform):
    """Exact: rounds constants once, and nothing twice.

    A QuantizeLinear of a constant (how ModelOpt and training tools store weights) is computed:
    the file holds integers and becomes a quarter. A QuantizeLinear behind a DequantizeLinear of
    the same grid gives back the integers that it came from. Pairs that nothing reads go.
    """

    stage: ClassVar[Stage] = Stage.FOLD
    consumes = (("QuantizeLinear", "com.microsoft::QuantizeLinear"),)

    def apply(self, model: ir.Model) -> int:
        return prune.edit_nodes(model, _tidy_pair)


def _tidy_pair(editor: edit.Editor, node: ir.Node) -> bool:
    if node.op_type != "QuantizeLinear" or not qdq.has_runtime_domain(node):
        return False
    return _remove_rounded_pair(editor, node) or _repeats_grid(node)


def _remove_rounded_pair(editor: edit.Editor, node: ir.Node) -> bool:
    source = node.inputs[0]
    values, grid = edit.const_array(source), qdq.read_grid(node)
    if values is None or grid is None or edit.is_overridable(source) or values.dtype.kind != "f":
        return False
    if not grid.single and not -values.ndim <= grid.axis < values.ndim:
        return False
    result = node.outputs[0]
    if result.is_graph_output():
        return False
    integers = editor.add_constant(f"{result.name}_int", qdq.quantize_array(values, grid))
    edit.redirect_uses(result, integers)
    edit.take_out(node)
    return True


def _repeats_grid(node: ir.Node) -> bool:
    """The steps of one grid are found again: rounding to float32 moves them far less than half."""
    before = qdq.find_runtime_producer(node.inputs[0], "DequantizeLinear")
    grid = qdq.read_grid(node)
    if before is None or grid is None or node.outputs[0].is_graph_output():
        return False
    other, integers = qdq.read_grid(before), before.inputs[0]
    if other is None or integers is None or not grid.is_same_grid(other):
        return False
    edit.redirect_uses(node.outputs[0], integers)
    edit.take_out(node)
    return True
