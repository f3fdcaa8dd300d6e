"""PRelu with a slope for each channel becomes a product and a maximum."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor, read_fixed_array, replace_node, shape_of
from ortune.transforms.common.formulas.formula import at_each


@dataclass(frozen=True)
class ExpandPrelu(Transform):
    """Write PRelu as the larger (or smaller) of two lines.

    ::

        PRelu(x, s)  =  max(x, s x)    s <= 1 everywhere
                     =  min(x, s x)    s >= 1 everywhere

    Exact for finite numbers. Left alone: slopes on both sides of one, and slopes that are no
    constants. One slope for all channels is LeakyRelu (`fuse-leaky-relu`).

    Only for onnxruntime's CPU provider, whose PRelu goes element by element.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    consumes = (("PRelu",),)

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Others have kernels of their own."""
        return backend.name() == "cpu"

    def apply(self, model: ir.Model) -> int:
        return at_each(model, _expand_prelu, "PRelu", since=9)


def _expand_prelu(model: ir.Model, node: ir.Node, editor: Editor) -> int | str:
    x, slope = node.inputs
    array = read_fixed_array(slope)
    if array is None or slope is None or x is None:
        return "its slope is not constant"
    if array.size < 2 or array.dtype.kind != "f":
        return 0
    choice = "Max" if (array <= 1).all() else "Min" if (array >= 1).all() else None
    if choice is None:
        return "its slopes lie on both sides of one"
    shape = shape_of(x)
    tail = None if shape is None else shape[len(shape) - array.ndim :]
    if tail is None or any(n not in (1, m) for n, m in zip(array.shape, tail, strict=False)):
        return "its slopes are not known to be broadcast"
    like = node.outputs[0]
    product = editor.make_node("Mul", [x, slope], name=f"{node.name}_sloped", like=like)
    bound = editor.make_node(choice, [x, product.outputs[0]], name=f"{node.name}_{choice.lower()}")
    return int(replace_node(node, product, bound))
