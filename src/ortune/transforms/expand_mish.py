"""Mish becomes a quotient of exponentials where the runtime's Softplus is slow."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor, has_single_use, note_refusal, replace_node
from ortune.graph.ir.match import find_consumer, find_other_operand, find_producer
from ortune.transforms.common.formulas.formula import NO_KERNEL, READ_ELSEWHERE, Chain, at_each

_LIMIT = 20.0
"""Above it the quotient is 1 in float64 too, and squares are far from overflowing float32."""


@dataclass(frozen=True)
class ExpandMish(Transform):
    """Write Mish as a quotient of exponentials, without the logarithm that tanh undoes.

    With t = exp(min(x, 20)) and n = t (t + 2)::

        Mish(x) = x tanh(softplus(x)) = x tanh(log(1 + t)) = x ((1 + t)^2 - 1) / ((1 + t)^2 + 1)
                = x n / (n + 2)

    Exact up to the order of the operations, below zero too, where 1 + t would round to 1. Takes
    the operator, and x Tanh(Softplus(x)) as older exporters write it.

    Only for onnxruntime's CPU provider, whose Softplus goes element by element.
    """

    stage: ClassVar[Stage] = Stage.FINISH

    def applies(self, facts: Facts) -> bool:
        return facts.has("Mish") or (facts.has("Softplus") and facts.has("Tanh"))

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Others have kernels of their own."""
        return backend.name() == "cpu"

    def apply(self, model: ir.Model) -> int:
        return at_each(model, _expand_mish, "Mish", "Tanh", since=8)


def _expand_mish(model: ir.Model, node: ir.Node, editor: Editor) -> int | str:
    x, last = node.inputs[0], node
    if node.op_type == "Tanh":
        softplus = find_producer(x, "Softplus")
        if softplus is None:
            return 0
        x = softplus.inputs[0]
        product = find_consumer(node.outputs[0], "Mul")
        if product is None or find_other_operand(product, node.outputs[0]) is not x:
            return 0
        if not has_single_use(softplus.outputs[0]):
            return READ_ELSEWHERE
        last = product
    if x is None or x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        note_refusal(model, last, NO_KERNEL)
        return 0
    dtype = x.dtype.numpy()
    chain = Chain(editor, last.name or "mish")
    limit, two = (chain.add_constant(n, v, dtype) for n, v in (("limit", _LIMIT), ("two", 2.0)))
    t = chain.add("Exp", chain.add("Min", x, limit))
    n = chain.add("Mul", t, chain.add("Add", t, two))
    chain.add("Mul", x, chain.add("Div", n, chain.add("Add", n, two)))
    for added in chain.nodes:
        added.outputs[0].type, added.outputs[0].shape = x.type, x.shape
    replace_node(last, *chain.nodes)
    return 1
