"""Quantize / dequantize pairs that compute nothing: weights stored in float, doubled pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, prune, qdq
from ortune.graph.ir.replace import forward
from ortune.graph.ir.values import overridable


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
        count = 0
        for graph in edit.every_graph(model):
            editor = edit.Editor(graph)
            for node in list(graph):
                if node.op_type == "QuantizeLinear" and qdq.ours(node):
                    count += _rounded(editor, node) or _doubled(node)
        if count:
            prune.drop_dead(model)
        return count


def _rounded(editor: edit.Editor, node: ir.Node) -> bool:
    source = node.inputs[0]
    values, grid = edit.const_array(source), qdq.grid(node)
    if values is None or grid is None or overridable(source) or values.dtype.kind != "f":
        return False
    if not grid.single and not -values.ndim <= grid.axis < values.ndim:
        return False
    result = node.outputs[0]
    if result.is_graph_output():
        return False
    forward(result, editor.constant(f"{result.name}_int", qdq.quantize(values, grid)))
    edit.take_out(node)
    return True


def _doubled(node: ir.Node) -> bool:
    """The steps of one grid are found again: rounding to float32 moves them far less than half."""
    before = qdq.maker(node.inputs[0], "DequantizeLinear")
    grid = qdq.grid(node)
    if before is None or grid is None or node.outputs[0].is_graph_output():
        return False
    other, integers = qdq.grid(before), before.inputs[0]
    if other is None or integers is None or not grid.same(other):
        return False
    forward(node.outputs[0], integers)
    edit.take_out(node)
    return True
