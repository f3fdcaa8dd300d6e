"""GELU spelled out in primitive operators becomes one Gelu."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor
from ortune.graph.ir.match import maker, number, other, reader
from ortune.transforms.common.formulas.formula import (
    INCOMPLETE,
    FactoredProduct,
    Site,
    at_each,
    climb,
    close,
    of_one,
    product,
    put,
)


@dataclass(frozen=True)
class FuseGelu(Transform):
    """Write GELU, by either definition and in any order of the factors, as one Gelu.

    ::

        none:  0.5 x (1 + erf(x / sqrt 2))
        tanh:  0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

    Products may be taken in any order and by Mul, Div or Pow; x + c x^3 may be x (1 + c x x), and
    0.5 (1 + erf) may be 0.5 erf + 0.5. Exact up to the order of the operations; constants may be
    rounded at the fifth digit.

    Needs opset 20; does nothing on older models (`raise-opset` lifts them).
    """

    stage: ClassVar[Stage] = Stage.FUSE
    consumes = (("Erf", "Tanh"), ("Mul",), ("Add", "Sum"))
    needs_opset: ClassVar[int] = 20
    """Lowest default-domain opset that has the operator."""

    def apply(self, model: ir.Model) -> int:
        return at_each(model, _fuse, "Erf", "Tanh", since=self.needs_opset)


_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_K, _C = math.sqrt(2 / math.pi), 0.044715


def _fuse(model: ir.Model, anchor: ir.Node, editor: Editor) -> int | str:
    erf = anchor.op_type == "Erf"
    inner = anchor.inputs[0]
    found = () if inner is None else _erf_argument(inner) if erf else _tanh_argument(inner)
    for x, below in found:
        for above in _halves(anchor.outputs[0], x):
            nodes = frozenset((anchor, *below, *above))
            site = Site((x,), nodes, above[-1])
            if not of_one(model, site, _TYPES):
                return 0
            return put(model, editor, site, "Gelu", {} if erf else {"approximate": "tanh"})
        return INCOMPLETE
    return 0


def _erf_argument(value: ir.Value) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """x / sqrt 2; what x is made of is no part of it."""
    node = maker(value, "Mul", "Div")
    for x in node.inputs if node is not None else ():
        found = product(value, [x]) if x is not None else None
        if x is not None and found is not None and found.equals(math.sqrt(0.5), [x]):
            yield x, found.nodes


def _tanh_argument(value: ir.Value) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """k (x + c x^3) or k x (1 + c x x), with k = sqrt(2 / pi) and c = 0.044715."""
    # The sum among the factors, which is not taken apart itself.
    found = (maker(one, "Add", "Sum") for one in product(value, ()).factors)
    for add in [node for node in found if node is not None and len(node.inputs) == 2]:
        total = add.outputs[0]
        outer = product(value, [total])
        for one, two in (add.inputs, tuple(reversed(add.inputs))):
            if one is None or two is None:
                continue
            unit = number(one) == 1.0
            for x in _bases(outer, total) if unit else [one]:
                term = product(two, [x])
                around = product(value, [total, x])
                wanted = ([x, x], [total, x]) if unit else ([x, x, x], [total])
                if term.equals(_C, wanted[0]) and around.equals(_K, wanted[1]):
                    yield x, (add, *term.nodes, *around.nodes)


def _bases(outer: FactoredProduct, total: ir.Value) -> list[ir.Value]:
    """What x may be: a factor, or what a factor among the nodes was made by."""
    inner = [v for node in outer.nodes for v in node.inputs if v is not None and v is not total]
    return [v for v in dict.fromkeys((*outer.factors, *inner)) if number(v) is None]


def _halves(value: ir.Value, x: ir.Value) -> Iterator[tuple[ir.Node, ...]]:
    """From erf or tanh up: 0.5 x (1 + value), the sum taken before or after halving."""
    plus = reader(value, "Add", "Sum")
    one = number(other(plus, value)) if plus is not None else None
    if plus is not None and one is not None and close(one, 1.0):
        above = climb(plus.outputs[0], 0.5, [x])
        if above is not None:
            yield (plus, *above.nodes)
    half = reader(value, "Mul", "Div")
    if half is None or not product(half.outputs[0], [value]).equals(0.5, [value]):
        return
    plus = reader(half.outputs[0], "Add", "Sum")
    summand = number(other(plus, half.outputs[0])) if plus is not None else None
    if plus is not None and summand == 0.5:
        above = climb(plus.outputs[0], 1.0, [x])
        if above is not None:
            yield (half, plus, *above.nodes)
