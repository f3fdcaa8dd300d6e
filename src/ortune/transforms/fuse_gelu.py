"""GELU spelled out in primitive operators becomes one Gelu."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model import prune
from ortune.model.edit import Editor
from ortune.model.match import enclosed, maker, near, other, reader, scalar_for
from ortune.model.replace import forward
from ortune.model.shapes import infer


@dataclass(frozen=True)
class FuseGelu(Transform):
    """Both definitions of ai.onnx Gelu, in every order of the factors.

    ::

        none:  0.5 x (1 + erf(x / sqrt 2))
        tanh:  0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

    The cube may be Pow(x, 3) or two Mul; x + c x^3 may be x (1 + c x x). Exact up to the order of
    the operations; constants may be rounded at the fifth digit. onnxruntime fuses the first form
    itself, into a kernel of the same speed (148 us for 128 x 1536 floats on one core), and leaves
    the second alone on its CPU provider: there the fused operator takes 119 us instead of 293 us.

    Needs opset 20; does nothing on older models (`raise-opset` lifts them).
    """

    stage: ClassVar[Stage] = Stage.FUSE
    needs_opset: ClassVar[int] = 20
    """Lowest default-domain opset that has the operator."""

    def applies(self, facts: Facts) -> bool:
        """There is an Erf or a Tanh."""
        return facts.has("Erf", "Tanh")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were fused."""
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        infer(model)
        editor = Editor(model.graph)
        count = 0
        for graph in (model.graph, *model.graph.subgraphs()):
            for node in list(graph):
                if node.op_type in ("Erf", "Tanh") and not node.domain and node.graph is not None:
                    count += _fuse(node, editor)
        if count:
            prune.drop_dead(model)
        return count


def _fuse(anchor: ir.Node, editor: Editor) -> int:
    erf = anchor.op_type == "Erf"
    found = _erf_argument(anchor.inputs[0]) if erf else _tanh_argument(anchor.inputs[0])
    if found is None:
        return 0
    x, inner = found
    plus = reader(anchor.outputs[0], "Add")
    if plus is None or not near(other(plus, anchor.outputs[0]), 1.0):
        return 0
    outer = _halved_product(plus.outputs[0], x)
    if outer is None:
        return 0
    nodes = {anchor, plus, *inner, *outer}
    last = outer[-1]
    if not enclosed(nodes, last) or not _keeps_shape(nodes, x) or x.dtype not in _TYPES:
        return 0
    attributes = {} if erf else {"approximate": "tanh"}
    gelu = editor.node("Gelu", [x], attributes, name=f"{last.name}_gelu")
    gelu.outputs[0].type, gelu.outputs[0].shape = last.outputs[0].type, last.outputs[0].shape
    if last.graph is None:
        return 0
    last.graph.insert_before(last, gelu)
    forward(last.outputs[0], gelu.outputs[0])
    return 1


_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _erf_argument(value: ir.Value | None) -> tuple[ir.Value, list[ir.Node]] | None:
    """x / sqrt 2, or x times its inverse."""
    node = maker(value, "Div", "Mul")
    if node is None or len(node.inputs) != 2:
        return None
    one, two = node.inputs
    if node.op_type == "Div":
        x = one if near(two, math.sqrt(2)) else None
    else:
        x = one if near(two, math.sqrt(0.5)) else two if near(one, math.sqrt(0.5)) else None
    return None if x is None else (x, [node])


def _tanh_argument(value: ir.Value | None) -> tuple[ir.Value, list[ir.Node]] | None:
    """k (x + c x^3) or (k x) (1 + c x x), with k = sqrt(2 / pi) and c = 0.044715."""
    node = maker(value, "Mul")
    if node is None or len(node.inputs) != 2:
        return None
    one, two = node.inputs
    for scale, rest in ((one, two), (two, one)):
        add = maker(rest, "Add")
        if add is None:
            continue
        if near(scale, _K):
            return _with_cube(node, add)
        product = maker(scale, "Mul")
        if product is not None:
            return _with_square(node, add, product)
    return None


_K, _C = math.sqrt(2 / math.pi), 0.044715


def _with_cube(node: ir.Node, add: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    for x, term in (add.inputs, reversed(add.inputs)):
        scaled = maker(term, "Mul")
        if scaled is None or x is None:
            continue
        for c, cube in (scaled.inputs, reversed(scaled.inputs)):
            nodes = _cube(cube, x) if near(c, _C) else None
            if nodes is not None:
                return x, [node, add, scaled, *nodes]
    return None


def _cube(value: ir.Value | None, x: ir.Value) -> list[ir.Node] | None:
    node = maker(value, "Pow", "Mul")
    if node is None or x not in node.inputs:
        return None
    if node.op_type == "Pow":
        return [node] if node.inputs[0] is x and near(node.inputs[1], 3.0) else None
    square = maker(other(node, x), "Mul", "Pow")
    return [node, square] if square is not None and _is_square(square, x) else None


def _is_square(node: ir.Node, x: ir.Value) -> bool:
    if node.op_type == "Pow":
        return node.inputs[0] is x and near(node.inputs[1], 2.0)
    return all(value is x for value in node.inputs)


def _with_square(
    node: ir.Node, add: ir.Node, product: ir.Node
) -> tuple[ir.Value, list[ir.Node]] | None:
    pairs = (tuple(product.inputs), tuple(reversed(product.inputs)))
    x = next((x for k, x in pairs if near(k, _K)), None)
    scaled = next((n for v in add.inputs if (n := maker(v, "Mul")) is not None), None)
    if x is None or scaled is None or not near(other(add, scaled.outputs[0]), 1.0):
        return None
    for c, value in (scaled.inputs, reversed(scaled.inputs)):
        square = maker(value, "Mul", "Pow")
        if near(c, _C) and square is not None and _is_square(square, x):
            return x, [node, add, product, scaled, square]
    return None


def _halved_product(value: ir.Value, x: ir.Value) -> list[ir.Node] | None:
    """Return the nodes that make 0.5 x value, in whichever order; the last makes the product."""
    first = reader(value, "Mul")
    if first is None:
        return None
    factor = other(first, value)
    half = maker(factor, "Mul")
    if half is not None and near(other(half, x), 0.5):
        return [half, first]
    second = reader(first.outputs[0], "Mul")
    if second is None:
        return None
    rest = other(second, first.outputs[0])
    if (factor is x and near(rest, 0.5)) or (near(factor, 0.5) and rest is x):
        return [first, second]
    return None


def _keeps_shape(nodes: set[ir.Node], x: ir.Value) -> bool:
    values = {value for node in nodes for value in node.inputs}
    constants = [value for value in values if value is not None and value.producer() not in nodes]
    return all(value is x or scalar_for(value, x) for value in constants)
