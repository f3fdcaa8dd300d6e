"""Spellings of SiLU (Swish) become x Sigmoid(x), the one that runtimes know."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor, read_attribute, replace_node
from ortune.graph.ir.match import find_other_operand, find_producer, read_scalar, scalar_for
from ortune.transforms.common.formulas.formula import WIDENS, Chain, Site, at_each, put_gated


@dataclass(frozen=True)
class FuseSilu(Transform):
    """Write SiLU (Swish) as x Sigmoid(x), which onnxruntime fuses.

    It has no operator below opset 24, and the one there is no gain. onnxruntime 1.31 fuses
    Mul(x, Sigmoid(x)) into one kernel (64 us for 128 x 1536 floats on one core) but takes
    Swish apart (111 us) and leaves the spellings through Exp alone. So all of them are written
    as x Sigmoid(x)::

        Swish(x, alpha)  =  x sigmoid(alpha x)
        x / (1 + exp(-x))  =  x (1 / (1 + exp(-x)))  =  x sigmoid(x)

    Exact but for the order of the operations; where exp(-x) overflows, below x = -88 in float32,
    both sides are 0 or rounded to it. Left alone: a part that something else reads, a constant of
    a higher rank than x.
    """

    stage: ClassVar[Stage] = Stage.FUSE

    def applies(self, facts: Facts) -> bool:
        return facts.has("Swish") or (facts.has("Exp") and facts.has("Neg", "Mul"))

    def apply(self, model: ir.Model) -> int:
        return at_each(model, _expand_swish, "Swish") + at_each(model, _fuse_sigmoid, "Exp")


def _expand_swish(model: ir.Model, swish: ir.Node, editor: Editor) -> int | str:
    x, alpha = swish.inputs[0], read_attribute(swish, "alpha", 1.0)
    if x is None or x.dtype is None:
        return "the type of its input is not known"
    chain = Chain(editor, str(swish.name))
    inner = x
    if alpha != 1.0:
        inner = chain.add("Mul", x, chain.add_constant("alpha", alpha, x.dtype.numpy()))
    chain.add("Mul", x, chain.add("Sigmoid", inner))
    return int(replace_node(swish, *chain.nodes))


def _fuse_sigmoid(model: ir.Model, exp: ir.Node, editor: Editor) -> int | str:
    minus = find_producer(exp.inputs[0], "Neg")
    x = minus.inputs[0] if minus is not None else None
    if minus is None or x is None:
        return 0
    for total, _ in exp.outputs[0].uses():
        if total.domain or total.op_type not in ("Add", "Sum"):
            continue
        addend = find_other_operand(total, exp.outputs[0])
        if read_scalar(addend) != 1.0:
            continue
        for above in _find_quotients(total.outputs[0], x):
            site = Site((x,), frozenset((minus, exp, total, *above)), above[-1])
            if not scalar_for(addend, x):
                return WIDENS
            return put_gated(model, editor, site, "Sigmoid")
    return 0


def _find_quotients(value: ir.Value, x: ir.Value) -> Iterator[tuple[ir.Node, ...]]:
    """What divides x by a value, at once or by its reciprocal."""
    for node, index in value.uses():
        if node.domain or index != int(node.op_type == "Div"):
            continue
        if node.op_type == "Div" and node.inputs[0] is x:
            yield (node,)
        if node.op_type == "Reciprocal":
            inverse = node.outputs[0]
            products = (n for n, _ in inverse.uses() if n.op_type == "Mul" and not n.domain)
            yield from ((node, n) for n in products if find_other_operand(n, inverse) is x)
