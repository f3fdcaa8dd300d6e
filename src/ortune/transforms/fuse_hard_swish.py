"""HardSwish and HardSigmoid spelled out in primitive operators become one operator."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor, read_attribute
from ortune.graph.ir.match import find_producer, read_scalar
from ortune.transforms.common.formulas import formula
from ortune.transforms.common.simplify.clamps import trace_clamps


@dataclass(frozen=True)
class FuseHardSwish(Transform):
    """Write clipped lines as HardSigmoid, and x times one as HardSwish.

    ::

        HardSigmoid(x, a, b)  =  clip(a x + b, 0, 1)  =  clip(k a x + k b, 0, k) / k
        HardSwish(x)  =  x HardSigmoid(x, 1/6, 1/2)  =  x clip(x + 3, 0, 6) / 6

    The clip may be Clip, Relu, Max and Min, the products in any order. Exact up to the order of
    the operations. HardSwish came with opset 14; in older models HardSigmoid and Mul are written,
    which is what onnxruntime's CPU provider makes of HardSwish anyway, and takes into the
    convolution before it.
    """

    stage: ClassVar[Stage] = Stage.FUSE

    def applies(self, facts: Facts) -> bool:
        clips = facts.has("Clip", "Min", "HardSigmoid")
        return clips and facts.has("Mul", "Div")

    def apply(self, model: ir.Model) -> int:
        count = formula.at_each(model, _fuse_hard_sigmoid, "Clip", "Min", "Max", "Relu")
        return count + formula.at_each(model, _fuse_product, "HardSigmoid")


_TYPES = (ir.DataType.FLOAT,)


@dataclass(frozen=True)
class _Line:
    """A line ``slope x + offset``."""

    x: ir.Value
    slope: float
    offset: float
    nodes: tuple[ir.Node, ...]


def _fuse_hard_sigmoid(model: ir.Model, anchor: ir.Node, editor: Editor) -> int:
    opset = model.opset_imports.get("", 0)
    bounded = trace_clamps(anchor.outputs[0], opset)
    if bounded is None or bounded.low != 0.0 or not 0.0 < bounded.high < float("inf"):
        return 0
    for line in _find_lines(bounded.source):
        slope, offset = line.slope / bounded.high, line.offset / bounded.high
        below = (*bounded.nodes, *line.nodes)
        swish = formula.is_close(slope, 1 / 6) and formula.is_close(offset, 0.5)
        above = (
            formula.follow_products(anchor.outputs[0], 1 / bounded.high, [line.x])
            if swish
            else None
        )
        if above is not None:
            return _put_hard_swish(model, editor, line.x, (*below, *above.nodes))
        if line.slope == 1.0 and bounded.high == 1.0:
            continue  # a bounded sum, which convolutions take in
        if bounded.high == 1.0:
            last: tuple[ir.Node, ...] = ()
        else:
            divided = formula.follow_products(anchor.outputs[0], 1 / bounded.high, [])
            if divided is None:
                continue
            last = divided.nodes
        nodes = (*below, *last)
        site = formula.Site((line.x,), frozenset(nodes), last[-1] if last else anchor)
        if not formula.of_one(model, site, _TYPES):
            return 0
        settings = {"alpha": slope, "beta": offset}
        return formula.replace_formula(model, editor, site, "HardSigmoid", settings)
    return 0


def _find_lines(value: ir.Value) -> Iterator[_Line]:
    """The ways in which a value is a line of another: x + b, a x + b."""
    add = find_producer(value, "Add", "Sum")
    if add is None or len(add.inputs) != 2:
        return
    for term, addend in (add.inputs, tuple(reversed(add.inputs))):
        offset = read_scalar(addend)
        if term is None or offset is None:
            continue
        yield _Line(term, 1.0, offset, (add,))
        node = find_producer(term, "Mul", "Div")
        for x in node.inputs if node is not None else ():
            factored = formula.factor_product(term, [x]) if x is not None else None
            if x is not None and factored is not None and factored.factors == (x,):
                yield _Line(x, factored.scale, offset, (add, *factored.nodes))


def _fuse_product(model: ir.Model, node: ir.Node, editor: Editor) -> int:
    """Fuse ``x HardSigmoid(x, 1/6, 1/2)``: only a gain where there is a HardSwish."""
    x = node.inputs[0]
    line = (read_attribute(node, "alpha", 0.2), read_attribute(node, "beta", 0.5))
    if x is None or model.opset_imports.get("", 0) < 14:
        return 0
    if not (formula.is_close(line[0], 1 / 6) and formula.is_close(line[1], 0.5)):
        return 0
    above = formula.follow_products(node.outputs[0], 1.0, [x])
    return _put_hard_swish(model, editor, x, (node, *above.nodes)) if above is not None else 0


def _put_hard_swish(
    model: ir.Model, editor: Editor, x: ir.Value, nodes: tuple[ir.Node, ...]
) -> int:
    site = formula.Site((x,), frozenset(nodes), nodes[-1])
    if not formula.of_one(model, site, _TYPES):
        return 0
    if model.opset_imports.get("", 0) >= 14:
        return formula.replace_formula(model, editor, site, "HardSwish")
    return formula.put_gated(model, editor, site, "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5})
