"""LeakyRelu in its other spellings becomes one operator."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor
from ortune.graph.ir.match import find_producer, read_scalar
from ortune.transforms.common.formulas import formula


@dataclass(frozen=True)
class FuseLeakyRelu(Transform):
    """Write one slope below zero, the same for all channels, as LeakyRelu.

    ::

        LeakyRelu(x, a)  =  PRelu(x, a)                    a constant of one element
                         =  where(x < 0, a x, x)           also by > or >=, the other way round
                         =  max(x, a x)                    0 <= a <= 1

    Exact. onnxruntime's CPU provider takes the last form alone into the convolution before it.
    """

    stage: ClassVar[Stage] = Stage.FUSE

    def applies(self, facts: Facts) -> bool:
        return facts.has("PRelu") or (facts.has("Where", "Max") and facts.has("Mul"))

    def apply(self, model: ir.Model) -> int:
        return formula.at_each(model, _fuse_slope, "PRelu", "Where", "Max")


_TYPES = (ir.DataType.FLOAT,)
_READS = {"PRelu": 2, "Where": 3, "Max": 2}


def _fuse_slope(model: ir.Model, node: ir.Node, editor: Editor) -> int:
    if len(node.inputs) != _READS[node.op_type]:
        return 0
    finder = {"PRelu": _match_prelu, "Where": _match_where, "Max": _match_max}[node.op_type]
    for x, slope, nodes in finder(node):
        site = formula.Site((x,), frozenset((node, *nodes)), node)
        if not formula.of_one(model, site, _TYPES):
            return 0
        return formula.replace_formula(model, editor, site, "LeakyRelu", {"alpha": slope})
    return 0


def _match_prelu(node: ir.Node) -> Iterator[tuple[ir.Value, float, tuple[ir.Node, ...]]]:
    x, slope = node.inputs[0], read_scalar(node.inputs[1])
    if x is not None and slope is not None:
        yield x, slope, ()


def _match_max(node: ir.Node) -> Iterator[tuple[ir.Value, float, tuple[ir.Node, ...]]]:
    for x, y in (node.inputs, tuple(reversed(node.inputs))):
        scaled = _find_slope(x, y)
        if x is not None and scaled is not None and 0 <= scaled[0] <= 1:
            yield x, *scaled


def _match_where(node: ir.Node) -> Iterator[tuple[ir.Value, float, tuple[ir.Node, ...]]]:
    condition, yes, no = node.inputs
    test = find_producer(condition, "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    if test is None or read_scalar(test.inputs[1]) != 0.0:
        return
    x, y = (no, yes) if test.op_type.startswith("Less") else (yes, no)
    scaled = _find_slope(x, y)
    if x is not None and test.inputs[0] is x and scaled is not None:
        yield x, scaled[0], (test, *scaled[1])


def _find_slope(
    x: ir.Value | None, y: ir.Value | None
) -> tuple[float, tuple[ir.Node, ...]] | None:
    """Return a and the nodes when y is a x."""
    if x is None or y is None or x is y:
        return None
    factored = formula.factor_product(y, [x])
    return (factored.scale, factored.nodes) if factored.factors == (x,) else None
