"""Dynamically quantized convolutions back to float arithmetic on the integer weights."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import onnx_ir as ir

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.graph.ir import edit
from ortune.quantizers.common.qdq.dequantize import FloatLayers

_INTEGER = {"Conv": "ConvInteger", "MatMul": "MatMulInteger"}


@dataclass(frozen=True)
class FloatConvs(Quantizer):
    """ConvInteger becomes Conv: tools write it, and onnxruntime runs it 2.5 to 9 times slower.

    The weights stay integers in the file, behind Cast and Mul that onnxruntime folds when it loads
    the model. Activations are no longer rounded, so answers change, towards those of the float
    model.

    Attributes:
        ops: Layers to turn back: Conv, MatMul. Dynamic products of matrices are fast as they are.
        at_load: Keep the integers in the file; off stores float32 weights, four times the size,
            which every runtime is fast with.
    """

    needs_opset: ClassVar[int] = 11

    ops: tuple[str, ...] = ("Conv",)
    at_load: bool = True

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        if facts.has("ConvInteger") and "int8-dynamic" in backend.arithmetic:
            yield cls()

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        edit.inline_functions(model)
        integer_ops = {_INTEGER.get(op, op) for op in self.ops}
        count = 0
        for graph in [model.graph, *model.graph.subgraphs()]:
            layers = FloatLayers(edit.Editor(graph), at_load=self.at_load)
            for node in list(graph):
                if node.op_type in integer_ops and not node.domain:
                    count += layers.rewrite_node(node)
        if not count:
            raise Refused(
                f"no dynamically quantized {', '.join(self.ops)} to turn back into float",
                fix="see `ortune inspect` for the model's operators",
            )
        remaining = sum(1 for node in edit.walk_nodes(model) if node.op_type in integer_ops)
        if remaining:
            counted = wording.format_count(remaining, "integer layer")
            edit.add_note(model, f"{counted} in another form left alone")
        return count
