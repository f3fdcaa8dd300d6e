"""Layer normalization spelled out in primitive operators becomes one LayerNormalization."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, match
from ortune.transforms.common.formulas import formula


@dataclass(frozen=True)
class FuseLayerNorm(Transform):
    """Write a norm over the last axes, with or without scale and shift, as LayerNormalization.

    With d = x - mean(x) and v = mean(d d)::

        scale d / sqrt(v + epsilon) + shift                           PyTorch and its kin
        x k + (shift - mean(x) k),  k = scale / sqrt(v + epsilon)     TensorFlow

    where the division may be a product with a reciprocal, the root a power, and mean and d may be
    computed twice. Without a scale it is 1. Scale and shift that are applied behind a Cast stay
    there. Exact up to the order of the operations. Only float32, in which the operator computes
    inside, Casts around it included.

    onnxruntime fuses the first form itself, but for products in the place of the division and a
    missing scale; done here, every runtime and every later step sees it.

    Needs opset 17; does nothing on older models (`raise-opset` lifts them).
    """

    stage: ClassVar[Stage] = Stage.FUSE
    consumes = (("ReduceMean",), ("Sqrt", "Pow"), ("Sub",))
    needs_opset: ClassVar[int] = 17

    def apply(self, model: ir.Model) -> int:
        return formula.at_each(model, _fuse_variance, "ReduceMean", since=self.needs_opset)


def _fuse_variance(model: ir.Model, variance: ir.Node, editor: edit.Editor) -> int:
    norm_roots = list(formula.find_roots(variance))
    below = formula.match_deviation(norm_roots[0]) if norm_roots else None
    last = (
        formula.require_trailing_axes(model, variance, below.x, below.axes)
        if below is not None
        else None
    )
    if below is None or last is None:
        return 0
    for root in norm_roots:
        for above in _find_scale_and_shift(root, below, last):
            whole = replace(above, nodes=(*below.nodes, *above.nodes))
            return formula.replace_by_norm(
                model, editor, "LayerNormalization", below.x, root=root, above=whole, last=last
            )
    edit.note_refusal(model, variance, formula.INCOMPLETE)
    return 0


def _list_equal_deviations(
    below: formula.Deviation,
) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """The deviation, and every other one of the same operands: exporters compute it twice."""
    for node, index in below.x.uses():
        if node.op_type != "Sub" or node.domain or index != 0:
            continue
        mean = match.find_producer(node.inputs[1], "ReduceMean")
        if mean is None or mean.inputs[0] is not below.x:
            continue
        if match.read_reduction_axes(mean) == below.axes:
            yield node.outputs[0], (node, mean)


def _find_scale_and_shift(
    root: formula.Root, below: formula.Deviation, last: formula.TrailingAxes
) -> Iterator[formula.ScaleAndShift]:
    for d, nodes in _list_equal_deviations(below):
        node = formula.find_quotient(root, d)
        if node is not None:
            above = formula.scale_and_shift(node, last, shifts=True)
            yield replace(above, nodes=(*nodes, *above.nodes))
    product = match.find_consumer(root.value, "Mul") if root.inverse else None
    scale = match.find_other_operand(product, root.value) if product is not None else None
    if product is not None and last.accepts_weight(scale):
        line = _match_linear_form(product, scale, below, last)
        if line is not None:
            yield line


def _match_linear_form(
    product: ir.Node, scale: ir.Value | None, below: formula.Deviation, last: formula.TrailingAxes
) -> formula.ScaleAndShift | None:
    """Match ``x k + (shift - mean k)``, with k made by `product`."""
    k = product.outputs[0]
    products = [node for node, _ in k.uses() if match.find_producer(node.outputs[0], "Mul")]
    scaled = {match.find_other_operand(node, k): node for node in products}
    if set(scaled) != {below.x, below.mean} or len(k.uses()) != 2:
        return None
    mean, x = scaled[below.mean].outputs[0], scaled[below.x].outputs[0]
    difference, total = match.find_consumer(mean, "Sub"), match.find_consumer(x, "Add")
    if difference is None or total is None or difference.inputs[1] is not mean:
        return None
    shift, behind = difference.inputs[0], difference.outputs[0]
    if not last.accepts_weight(shift) or match.find_other_operand(total, x) is not behind:
        return None
    return formula.ScaleAndShift(scale, shift, (product, *scaled.values(), difference, total))
