"""Softmax and LogSoftmax spelled out in primitive operators become one operator."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor, shape_of
from ortune.graph.ir.match import find_consumer, find_producer, read_reduction_axes
from ortune.transforms.common.formulas import formula


@dataclass(frozen=True)
class FuseSoftmax(Transform):
    """Write Softmax and LogSoftmax over one axis, the maximum taken off, as one operator.

    With d = x - max(x)::

        Softmax(x)     =  exp(d) / sum(exp(d))
        LogSoftmax(x)  =  d - log(sum(exp(d)))

    where the division may be a product with a reciprocal. Exact up to the order of the operations.
    Without the maximum, exp(x) / sum(exp(x)) overflows where Softmax does not: it is left alone.
    Before opset 13 the operators normalized all axes from one on: there the last axis only.

    onnxruntime's CPU provider fuses neither. It comes before `fuse-attention`, which is found by
    its Softmax.
    """

    stage: ClassVar[Stage] = Stage.SPELL
    consumes = (("Exp",), ("ReduceSum",), ("ReduceMax",))

    def apply(self, model: ir.Model) -> int:
        return formula.at_each(model, _fuse_quotient, "Exp")


def _fuse_quotient(model: ir.Model, exp: ir.Node, editor: Editor) -> int | str:
    sub = find_producer(exp.inputs[0], "Sub")
    biggest = find_producer(sub.inputs[1], "ReduceMax") if sub is not None else None
    if sub is None or biggest is None or biggest.inputs[0] is not sub.inputs[0]:
        return 0
    x, axis = sub.inputs[0], _reduction_axis(biggest)
    total = next((n for n, _ in exp.outputs[0].uses() if _sums_over(n, axis)), None)
    above = _match_quotient(exp.outputs[0], sub.outputs[0], total) if total is not None else None
    if x is None or axis is None or total is None:
        return 0
    if above is None:
        return formula.INCOMPLETE
    if x.dtype != ir.DataType.FLOAT:
        return formula.NO_KERNEL
    if model.opset_imports.get("", 0) < 13:
        shape = shape_of(x)
        axis = axis % len(shape) if shape and axis in (-1, len(shape) - 1) else None
    if axis is None:
        return "before opset 13 only the last axis is supported"
    op, nodes = above
    site = formula.Site((x,), frozenset((biggest, sub, exp, total, *nodes)), nodes[-1])
    return formula.replace_formula(model, editor, site, op, {"axis": axis})


def _reduction_axis(node: ir.Node) -> int | None:
    """Return the one axis of a reduction that keeps its dimensions, None for any other."""
    axes = read_reduction_axes(node)
    return axes[0] if axes is not None and len(axes) == 1 else None


def _sums_over(node: ir.Node, axis: int | None) -> bool:
    return node.op_type == "ReduceSum" and not node.domain and _reduction_axis(node) == axis


def _match_quotient(
    exp: ir.Value, d: ir.Value, total: ir.Node
) -> tuple[str, tuple[ir.Node, ...]] | None:
    value = total.outputs[0]
    node = find_consumer(value, "Div", "Reciprocal", "Log")
    if node is None:
        return None
    if node.op_type == "Div":
        return ("Softmax", (node,)) if list(node.inputs) == [exp, value] else None
    last = find_consumer(node.outputs[0], "Mul", "Sub")
    if last is None:
        return None
    if node.op_type == "Reciprocal" and last.op_type == "Mul" and exp in last.inputs:
        return "Softmax", (node, last)
    if node.op_type == "Log" and list(last.inputs) == [d, node.outputs[0]]:
        return ("LogSoftmax", (node, last)) if last.op_type == "Sub" else None
    return None
