"""bfloat16 weights and activations."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import onnx_ir as ir

from ortune.core.observer import Ranges
from ortune.core.plugins.bounds import Bounds
from ortune.core.roles import Role
from ortune.graph.ir import edit
from ortune.quantizers.common.float16.narrow import HalfPrecision
from ortune.quantizers.common.float16.overflow import BFLOAT16, Format


@dataclass(frozen=True)
class Bf16(HalfPrecision):
    """Use bfloat16 wherever an operator has it, with Casts where one wants float32; half the file.

    float32's range with 8 bits of precision: nothing overflows that did not before, and rounding
    is 8 times coarser than float16's. The machinery is that of `fp16`. Convolutions, pooling and
    recurrent operators have bfloat16 from opset 22 on, so older models are raised to it.
    onnxruntime's CPU provider has next to no bfloat16 kernels and refuses the file; OpenVINO runs
    it (and computes float32 models in bfloat16 by its option ``precision=bf16``, without a file).
    """

    needs_opset: ClassVar[int] = 22
    format: ClassVar[Format] = BFLOAT16
    role: ClassVar[Role] = Role.HALVES

    loss: Annotated[float, Bounds(high=1e6)] = 0.1
    sums: Literal["float32", "bfloat16"] = "float32"

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Convert the model; a note names the operators without a kernel on the CPU."""
        count = super().apply(model, ranges)
        ops = {
            node.op_type
            for node in edit.walk_nodes(model)
            for value in (*node.inputs, *node.outputs)
            if value is not None and value.dtype == ir.DataType.BFLOAT16
        }
        if lacking := ", ".join(sorted(ops - CPU_KERNELS)):
            edit.add_note(model, f"onnxruntime's CPU provider has no bfloat16 {lacking}")
        return count


_CPU_TEXT = (
    "Cast Concat Constant ConstantOfShape Flatten Gather GatherElements Identity If IsInf IsNaN "
    "LayerNormalization Loop Reshape Scan ScatterND Shape Sign Slice Split Squeeze Transpose "
    "Unsqueeze"
)
CPU_KERNELS = frozenset(_CPU_TEXT.split())
"""What onnxruntime 1.31's CPU provider runs in bfloat16; a test asks the installed one."""
