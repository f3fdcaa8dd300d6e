"""A bias and the GELU of the sum become one operator of onnxruntime's own."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor, const_tensor, is_overridable, read_attribute, shape_of
from ortune.graph.ir.match import find_producer
from ortune.transforms.common.formulas import formula


@dataclass(frozen=True)
class FuseBiasGelu(Transform):
    """Join a bias and the GELU of the sum: com.microsoft BiasGelu, or FastGelu for tanh.

    ::

        Gelu(x + bias)  =  BiasGelu(x, bias)      bias a constant vector over the last axis

    Exact. Not for onnxruntime's CPU provider, which does it itself to no measurable effect. Not
    measured where it is meant for; results were compared on the CPU provider.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    consumes = (("Gelu",), ("Add",))

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Those with onnxruntime's own operators, but for the CPU provider."""
        return formula.beyond_cpu(backend)

    def apply(self, model: ir.Model) -> int:
        return formula.at_each_foreign(model, _fuse_gelu_bias, "Gelu")


def _fuse_gelu_bias(model: ir.Model, gelu: ir.Node, editor: Editor) -> int | str:
    add = find_producer(gelu.inputs[0], "Add")
    for x, bias in (add.inputs, tuple(reversed(add.inputs))) if add is not None else ():
        tensor = None if is_overridable(bias) else const_tensor(bias)
        shape = shape_of(x)
        if x is None or add is None or tensor is None or len(tensor.shape) != 1:
            continue
        if shape is None or tuple(tensor.shape) != shape[-1:]:
            return "the bias is not known to be as long as the last axis"
        if x.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            return formula.NO_KERNEL
        tanh = read_attribute(gelu, "approximate", "none") == "tanh"
        site = formula.Site((x, bias), frozenset((add, gelu)), gelu)
        op = "FastGelu" if tanh else "BiasGelu"
        return formula.replace_formula(model, editor, site, op, domain="com.microsoft")
    return 0
