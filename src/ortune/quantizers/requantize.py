"""A model that another tool quantized, quantized anew from its own weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, Self

import onnx_ir as ir

from ortune.core import wording as say
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.roles import Role, find_plugin, make_static_int8
from ortune.core.step import Quantizer
from ortune.quantizers.common.qdq.dequantize import restore_float

_INTEGER = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
_PAIRS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Requantize(Quantizer):
    """Back to float, then another quantizer: for pairs where no kernel wants them.

    Some tools place pairs for another runtime: no pair behind a convolution (ModelOpt, for
    TensorRT), one step a channel of an activation (NNCF, for OpenVINO), everything dynamic (Olive,
    Optimum). onnxruntime then computes in float and rounds besides. Pairs are taken out, integer
    weights widened, and `step` quantizes the result. Weights that one step a channel fitted are
    found again exactly. QOperator models are refused.

    Attributes:
        step: The quantizer; int8-static as it is by default if none is given.
    """

    needs_opset: ClassVar[int] = 13

    step: Quantizer | None = None

    @property
    def portable(self) -> bool:
        return self._select_quantizer().portable

    def made_portable(self) -> Self:
        return replace(self, step=self._select_quantizer().made_portable())

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield the first offers of the int8 quantizers for the float model that it was."""
        if not facts.quantized or facts.has("QLinearConv", "QLinearMatMul"):
            return
        ops: dict[str, int] = {}
        for op, count in facts.ops.items():
            if op not in _PAIRS:
                ops[_INTEGER.get(op, op)] = ops.get(_INTEGER.get(op, op), 0) + count
        was = replace(facts, ops=ops)
        for role in (Role.STATIC, Role.DYNAMIC):
            quantizer = find_plugin(Quantizer, role)
            offered = quantizer.offers(was, backend, capabilities) if quantizer else ()
            for offer in islice(offered, 1):
                yield cls(step=offer)

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the tensors that the quantizer needs, after the model is float again."""
        restore_float(model)
        return self._select_quantizer().probes(model)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        restore_float(model)
        kinds = ("QLinearConv", "QLinearMatMul")
        remaining = [node for node in model.graph.all_nodes() if node.op_type in kinds]
        if remaining:
            raise Refused(
                f"{say.format_count(len(remaining), 'layer')} written as integer operators, "
                "which stay",
                fix="apply u8s8, which makes the fast pair of dtypes of them",
            )
        return self._select_quantizer().apply(model, ranges)

    def _select_quantizer(self) -> Quantizer:
        return self.step or make_static_int8()
