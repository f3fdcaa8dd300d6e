"""Spellings of SiLU (Swish) become x Sigmoid(x), the one that runtimes know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model import prune
from ortune.model.edit import attribute
from ortune.model.match import near, scalar_for
from ortune.model.rewrite import rewrite
from ortune.model.shapes import infer


@dataclass(frozen=True)
class FuseSilu(Transform):
    """SiLU has no operator below opset 24, and the one there is no gain.

    onnxruntime 1.31 fuses Mul(x, Sigmoid(x)) into one kernel (64 us for 128 x 1536 floats on one
    core) but takes Swish apart (111 us) and leaves the spellings through Exp alone. So all of
    them are written as x Sigmoid(x)::

        Swish(x, alpha)  =  x sigmoid(alpha x)
        x / (1 + exp(-x))  =  x (1 / (1 + exp(-x)))  =  x sigmoid(x)

    Exact but for the order of the operations; where exp(-x) overflows, below x = -88 in float32,
    both sides are 0 or rounded to it.
    """

    stage: ClassVar[Stage] = Stage.FUSE

    def applies(self, facts: Facts) -> bool:
        """There is a Swish, or an Exp with what else it takes."""
        return facts.has("Swish") or (facts.has("Exp") and facts.has("Neg", "Mul"))

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were rewritten."""
        infer(model)
        count = rewrite(model, _swish, _sigmoid, _plain) + rewrite(model, _swish, _scaled)
        count += rewrite(model, [_quotient, _product], _sigmoid, _is_sigmoid)
        if count:
            prune.drop_dead(model)
        return count


def _swish(op: Any, x: Any) -> Any:
    return op.Swish(x, _outputs=["y"])


def _plain(context: Any, y: ir.Value, **_: Any) -> bool:
    node = y.producer()
    return node is not None and attribute(node, "alpha", 1.0) == 1.0


def _scaled(op: Any, x: Any, y: ir.Value) -> Any:
    node = y.producer()
    alpha = attribute(node, "alpha", 1.0) if node is not None else 1.0
    like = op.CastLike(op.Constant(value_float=alpha), x)
    return op.Mul(x, op.Sigmoid(op.Mul(x, like)))


def _quotient(op: Any, x: Any, one: Any) -> Any:
    return op.Div(x, op.Add(op.Exp(op.Neg(x)), one))


def _product(op: Any, x: Any, one: Any) -> Any:
    return op.Mul(x, op.Reciprocal(op.Add(op.Exp(op.Neg(x)), one)))


def _is_sigmoid(context: Any, x: ir.Value, one: ir.Value, **_: Any) -> bool:
    return near(one, 1.0, tolerance=0.0) and scalar_for(one, x)


def _sigmoid(op: Any, x: Any, **_: Any) -> Any:
    return op.Mul(x, op.Sigmoid(x))
