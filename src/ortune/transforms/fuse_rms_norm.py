"""RMS normalization spelled out in primitive operators becomes one RMSNormalization."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor
from ortune.transforms.common.formulas import formula


@dataclass(frozen=True)
class FuseRmsNorm(Transform):
    """Write a norm by the root of the mean square over the last axes as RMSNormalization.

    ::

        scale x / sqrt(mean(x x) + epsilon)

    The division may be a product with a reciprocal, the root a power. Without a scale it is 1; one
    that is applied behind a Cast stays there. Where x is a deviation from the mean it is a layer
    norm, which `fuse-layer-norm` takes. Exact up to the order of the operations; only float32, in
    which the operator computes inside.

    Needs opset 23, whose RMSNormalization has a kernel in onnxruntime's CPU provider; its own
    SimplifiedLayerNormalization, which it fuses from the old exporter's division alone, is of no
    standard and no faster.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    needs_opset: ClassVar[int] = 23

    def applies(self, facts: Facts) -> bool:
        """The parts are there, and more means of squares than layer norms would take.

        A layer norm has two means a root: a model of these alone is not raised to opset 23.
        """
        count = facts.ops.get("Sqrt", 0) or facts.ops.get("Pow", 0) // 2
        means = facts.ops.get("ReduceMean", 0)
        return 0 < means < 2 * count and facts.has("Div", "Reciprocal") and facts.has("Mul")

    def apply(self, model: ir.Model) -> int:
        return formula.at_each(model, _fuse_mean, "ReduceMean", since=self.needs_opset)


def _fuse_mean(model: ir.Model, mean: ir.Node, editor: Editor) -> int | str:
    norm_roots = list(formula.find_roots(mean))
    if not norm_roots or formula.match_deviation(norm_roots[0]) is not None:
        return 0
    x = norm_roots[0].squared
    last = formula.require_trailing_axes(model, mean, x, norm_roots[0].axes)
    if last is None:
        return 0
    for root in norm_roots:
        node = formula.find_quotient(root, x)
        if node is not None:
            above = formula.scale_and_shift(node, last, shifts=False)
            return formula.replace_by_norm(
                model, editor, "RMSNormalization", x, root=root, above=above, last=last
            )
    return formula.INCOMPLETE
