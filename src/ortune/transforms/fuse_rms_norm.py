"""RMS normalization spelled out in primitive operators becomes one RMSNormalization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph.edit import Editor, discard, refuse
from ortune.model.graph.match import maker, other, reader, reduced
from ortune.rewrites.formulas.formula import INCOMPLETE, NO_KERNEL, Site, at_each, put
from ortune.rewrites.formulas.root_mean_square import Root, Tail, divided, roots, tail


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
    """Lowest default-domain opset that has the operator."""

    def applies(self, facts: Facts) -> bool:
        """The parts are there, and more means of squares than layer norms would take.

        A layer norm has two means a root: a model of these alone is not raised to opset 23.
        """
        count = facts.ops.get("Sqrt", 0) or facts.ops.get("Pow", 0) // 2
        means = facts.ops.get("ReduceMean", 0)
        return 0 < means < 2 * count and facts.has("Div", "Reciprocal") and facts.has("Mul")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were fused."""
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        return at_each(model, _fuse, "ReduceMean")


def _fuse(model: ir.Model, mean: ir.Node, editor: Editor) -> int:
    found = list(roots(mean))
    if not found or _is_deviation(found[0]):
        return 0
    x = found[0].squared
    last = tail(x, found[0].axes)
    if last is None:
        refuse(model, mean, "the axes are not the last ones")
        return 0
    if x.dtype != ir.DataType.FLOAT:
        refuse(model, mean, NO_KERNEL)
        return 0
    for root in found:
        node = divided(root, x)
        if node is not None:
            return _place(model, editor, root, node, last)
    refuse(model, mean, INCOMPLETE)
    return 0


def _is_deviation(root: Root) -> bool:
    node = maker(root.squared, "Sub")
    mean = maker(node.inputs[1], "ReduceMean") if node is not None else None
    if node is None or mean is None:
        return False
    return mean.inputs[0] is node.inputs[0] and reduced(mean) == root.axes


def _place(model: ir.Model, editor: Editor, root: Root, node: ir.Node, last: Tail) -> int:
    for given, nodes in _scaled(node, last):
        scale = last.plain(given, editor) if given is not None else last.ones(editor)
        if scale is None:
            refuse(model, node, "there is no scale, and the size of an axis is not known")
            return 0
        site = Site((root.squared, scale), frozenset((*root.nodes, *nodes)), nodes[-1])
        settings = {"axis": -len(last.sizes), "epsilon": root.epsilon}
        done = put(model, editor, site, "RMSNormalization", settings)
        if not done:
            discard(scale)
        return done
    return 0


def _scaled(node: ir.Node, last: Tail) -> Iterator[tuple[ir.Value | None, tuple[ir.Node, ...]]]:
    product = reader(node.outputs[0], "Mul")
    scale = other(product, node.outputs[0]) if product is not None else None
    if product is not None and last.fits(scale):
        yield scale, (node, product)
    yield None, (node,)
