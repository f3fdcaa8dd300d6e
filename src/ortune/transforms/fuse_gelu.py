"""GELU spelled out in primitive operators becomes one Gelu."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor
from ortune.graph.ir.match import find_consumer, find_other_operand, find_producer, read_scalar
from ortune.transforms.common.formulas import formula


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

    def apply(self, model: ir.Model) -> int:
        return formula.at_each(model, _fuse_gelu, "Erf", "Tanh", since=self.needs_opset)


_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_K, _C = math.sqrt(2 / math.pi), 0.044715


def _fuse_gelu(model: ir.Model, anchor: ir.Node, editor: Editor) -> int | str:
    erf = anchor.op_type == "Erf"
    inner = anchor.inputs[0]
    candidates = () if inner is None else _erf_argument(inner) if erf else _tanh_argument(inner)
    for x, below in candidates:
        for above in _find_halved_products(anchor.outputs[0], x):
            nodes = frozenset((anchor, *below, *above))
            site = formula.Site((x,), nodes, above[-1])
            if not formula.of_one(model, site, _TYPES):
                return 0
            settings = {} if erf else {"approximate": "tanh"}
            return formula.replace_formula(model, editor, site, "Gelu", settings)
        return formula.INCOMPLETE
    return 0


def _erf_argument(value: ir.Value) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """Yield x of ``x / sqrt 2`` and the nodes between; what x is made of is no part of it."""
    node = find_producer(value, "Mul", "Div")
    for x in node.inputs if node is not None else ():
        argument = formula.factor_product(value, [x]) if x is not None else None
        if x is not None and argument is not None and argument.equals_product(math.sqrt(0.5), [x]):
            yield x, argument.nodes


def _tanh_argument(value: ir.Value) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """Yield x of ``k (x + c x^3)`` or ``k x (1 + c x x)``, k = sqrt(2 / pi), c = 0.044715."""
    # The sum among the factors, which is not taken apart itself.
    additions = (
        find_producer(linear, "Add", "Sum") for linear in formula.factor_product(value, ()).factors
    )
    for add in [node for node in additions if node is not None and len(node.inputs) == 2]:
        total = add.outputs[0]
        outer = formula.factor_product(value, [total])
        for linear, cubic in (add.inputs, tuple(reversed(add.inputs))):
            if linear is None or cubic is None:
                continue
            unit = read_scalar(linear) == 1.0
            for x in _list_bases(outer, total) if unit else [linear]:
                term = formula.factor_product(cubic, [x])
                around = formula.factor_product(value, [total, x])
                expected = ([x, x], [total, x]) if unit else ([x, x, x], [total])
                if term.equals_product(_C, expected[0]) and around.equals_product(_K, expected[1]):
                    yield x, (add, *term.nodes, *around.nodes)


def _list_bases(outer: formula.FactoredProduct, total: ir.Value) -> list[ir.Value]:
    """What x may be: a factor, or what a factor among the nodes was made by."""
    inner = [v for node in outer.nodes for v in node.inputs if v is not None and v is not total]
    return [v for v in dict.fromkeys((*outer.factors, *inner)) if read_scalar(v) is None]


def _find_halved_products(value: ir.Value, x: ir.Value) -> Iterator[tuple[ir.Node, ...]]:
    """From erf or tanh up: 0.5 x (1 + value), the sum taken before or after halving."""
    plus = find_consumer(value, "Add", "Sum")
    addend = read_scalar(find_other_operand(plus, value)) if plus is not None else None
    if plus is not None and addend is not None and formula.is_close(addend, 1.0):
        above = formula.follow_products(plus.outputs[0], 0.5, [x])
        if above is not None:
            yield (plus, *above.nodes)
    half = find_consumer(value, "Mul", "Div")
    if half is None or not formula.factor_product(half.outputs[0], [value]).equals_product(
        0.5, [value]
    ):
        return
    plus = find_consumer(half.outputs[0], "Add", "Sum")
    summand = read_scalar(find_other_operand(plus, half.outputs[0])) if plus is not None else None
    if plus is not None and summand == 0.5:
        above = formula.follow_products(plus.outputs[0], 1.0, [x])
        if above is not None:
            yield (half, plus, *above.nodes)
