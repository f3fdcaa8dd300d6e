"""Powers and quotients by constants become what is cheaper and gives the same numbers."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor
from ortune.graph.ir.match import read_scalar, scalar_for
from ortune.transforms.common.formulas.formula import WIDENS, Site, at_each, replace_formula


@dataclass(frozen=True)
class CheaperArithmetic(Transform):
    """Write powers as Mul, Sqrt and Reciprocal, and division by 2^k as Mul.

    No runtime does it, so it is done here, after the fusions have read what was written.

    ::

        Pow(x, 2)    = Mul(x, x)          Pow(x, 0.5)  = Sqrt(x)
        Pow(x, -1)   = Reciprocal(x)      Pow(x, -0.5) = Reciprocal(Sqrt(x))
        Div(x, 2^k)  = Mul(x, 2^-k)

    Exact but for the infinities and the sign of zero in roots, and one more rounding in the last
    power. Division by other constants would not be exact and is left alone. Floats only, constants
    of one element only. Pow(x, 3) is left: two Mul gain little and cost a node.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    consumes = (("Pow", "Div"),)

    def apply(self, model: ir.Model) -> int:
        return at_each(model, _simplify_power_or_quotient, "Pow", "Div")


_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def _simplify_power_or_quotient(model: ir.Model, node: ir.Node, editor: Editor) -> int | str:
    if len(node.inputs) != 2 or model.opset_imports.get("", 0) < 7:
        return 0
    x, constant = node.inputs
    number = read_scalar(constant)
    if x is None or constant is None or number is None or read_scalar(x) is not None:
        return 0
    if x.dtype not in _TYPES or node.outputs[0].dtype not in (None, x.dtype):
        return 0
    is_cheaper = number in _POWERS if node.op_type == "Pow" else _is_power_of_two(number)
    if not is_cheaper:
        return "the inverse of the divisor is not exact" if node.op_type == "Div" else 0
    if not scalar_for(constant, x):
        return WIDENS
    if node.op_type == "Div":
        inverse = editor.add_constant(
            f"{node.name}_inverse", np.array(1 / number, x.dtype.numpy())
        )
        return replace_formula(model, editor, Site((x, inverse), frozenset((node,)), node), "Mul")
    nodes = frozenset((node,))
    if number == 2.0:
        return replace_formula(model, editor, Site((x, x), nodes, node), "Mul")
    if number == 0.5:
        return replace_formula(model, editor, Site((x,), nodes, node), "Sqrt")
    if number == -0.5 and node.graph is not None:
        x = editor.add_node(node, "Sqrt", [x], name=f"{node.name}_root", like=x)
    return replace_formula(model, editor, Site((x,), nodes, node), "Reciprocal")


_POWERS = (2.0, 0.5, -1.0, -0.5)


def _is_power_of_two(value: float) -> bool:
    """Say whether it is a power of two whose inverse is a normal number in float16 too."""
    return abs(math.frexp(value)[0]) == 0.5 and 2.0**-14 <= abs(value) <= 2.0**14
