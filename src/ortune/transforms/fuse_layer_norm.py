"""Layer normalization spelled out in primitive operators becomes one LayerNormalization."""

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
    needs_opset: ClassVar[int] = 17
    """Lowest default-domain opset that has the operator."""

    def applies(self, facts: Facts) -> bool:
        """The parts are there."""
        return facts.has("ReduceMean") and facts.has("Sqrt", "Pow") and facts.has("Sub")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were fused."""
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        return at_each(model, _fuse, "ReduceMean")


@dataclass(frozen=True)
class _Deviation:
    """x - mean(x), and the nodes that compute it, twins included."""

    x: ir.Value
    mean: ir.Value
    axes: tuple[int, ...]
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True)
class _Affine:
    """What is above the division."""

    scale: ir.Value | None
    shift: ir.Value | None
    nodes: tuple[ir.Node, ...]


def _fuse(model: ir.Model, variance: ir.Node, editor: Editor) -> int:
    found = list(roots(variance))
    below = _deviation(found[0]) if found else None
    if below is None:
        return 0
    last = tail(below.x, below.axes)
    if last is None:
        refuse(model, variance, "the axes are not the last ones")
        return 0
    if below.x.dtype != ir.DataType.FLOAT:
        refuse(model, variance, NO_KERNEL)
        return 0
    for root in found:
        for above in _above(root, below, last):
            return _place(model, editor, root, below, above, last)
    refuse(model, variance, INCOMPLETE)
    return 0


def _place(
    model: ir.Model, editor: Editor, root: Root, below: _Deviation, above: _Affine, last: Tail
) -> int:
    scale = last.plain(above.scale, editor) if above.scale is not None else last.ones(editor)
    if scale is None:
        refuse(model, above.nodes[-1], "there is no scale, and the size of an axis is not known")
        return 0
    shift = [] if above.shift is None else [last.plain(above.shift, editor)]
    nodes = frozenset((*root.nodes, *below.nodes, *above.nodes))
    site = Site((below.x, scale, *shift), nodes, above.nodes[-1])
    settings = {"axis": -len(last.sizes), "epsilon": root.epsilon}
    done = put(model, editor, site, "LayerNormalization", settings)
    if not done:
        for made in (scale, *shift):
            discard(made)
    return done


def _deviation(root: Root) -> _Deviation | None:
    node = maker(root.squared, "Sub")
    mean = maker(node.inputs[1], "ReduceMean") if node is not None else None
    if node is None or mean is None or mean.inputs[0] is not node.inputs[0]:
        return None
    x, axes = node.inputs[0], reduced(mean)
    if x is None or axes is None or axes != root.axes:
        return None
    return _Deviation(x, mean.outputs[0], axes, (node, mean))


def _twins(below: _Deviation) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """The deviation, and every other one of the same operands: exporters compute it twice."""
    for node, index in below.x.uses():
        mean = maker(node.inputs[1], "ReduceMean") if index == 0 and len(node.inputs) > 1 else None
        if node.op_type != "Sub" or node.domain or mean is None:
            continue
        if mean.inputs[0] is below.x and reduced(mean) == below.axes:
            yield node.outputs[0], (node, mean)


def _above(root: Root, below: _Deviation, last: Tail) -> Iterator[_Affine]:
    for d, nodes in _twins(below):
        node = divided(root, d)
        if node is not None:
            yield _scale_and_shift(node.outputs[0], (*nodes, node), last)
    product = reader(root.value, "Mul") if root.inverse else None
    scale = other(product, root.value) if product is not None else None
    if product is not None and last.fits(scale):
        line = _line(product, scale, below, last)
        if line is not None:
            yield line


def _scale_and_shift(value: ir.Value, nodes: tuple[ir.Node, ...], last: Tail) -> _Affine:
    product = reader(value, "Mul")
    scale = other(product, value) if product is not None else None
    if product is None or not last.fits(scale):
        return _Affine(None, None, nodes)
    total = reader(product.outputs[0], "Add")
    shift = other(total, product.outputs[0]) if total is not None else None
    if total is None or not last.fits(shift):
        return _Affine(scale, None, (*nodes, product))
    return _Affine(scale, shift, (*nodes, product, total))


def _line(
    product: ir.Node, scale: ir.Value | None, below: _Deviation, last: Tail
) -> _Affine | None:
    """x k + (shift - mean k), with k made by `product`."""
    k = product.outputs[0]
    scaled = {other(node, k): node for node, _ in k.uses() if maker(node.outputs[0], "Mul")}
    if set(scaled) != {below.x, below.mean} or len(k.uses()) != 2:
        return None
    rest = reader(scaled[below.mean].outputs[0], "Sub")
    total = reader(scaled[below.x].outputs[0], "Add")
    if rest is None or total is None or rest.inputs[1] is not scaled[below.mean].outputs[0]:
        return None
    shift = rest.inputs[0]
    if not last.fits(shift) or other(total, scaled[below.x].outputs[0]) is not rest.outputs[0]:
        return None
    return _Affine(scale, shift, (product, *scaled.values(), rest, total))
