"""Half precision: float16 weights and activations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.model import edit
from ortune.quantizers._half import Halver
from ortune.quantizers._types import kinds

CAST_OPSET = 13
"""Opset of the Casts in a model that has no standard operators yet."""


@dataclass(frozen=True)
class Fp16(Quantizer):
    """float16 everywhere an operator has it, Casts where one wants float32; half the file.

    Types are written into Cast, Constant and ConstantOfShape and into the bodies of If, Loop and
    Scan. What a schema fixes to float32 (the scales of Resize) stays, input by input. A node whose
    constants overflow float16 (beyond 65504) or vanish in it (all below 6e-5) stays in float32;
    mask constants beyond 1e30 are clipped. Operators outside the ONNX domains stay in float32.
    onnxruntime's CPU provider computes in float32 between Casts of its own: no faster there.

    Attributes:
        keep_io: Inputs and outputs keep their float32, through a Cast at the border.
        block: Operators that stay in float32, such as LSTM.
    """

    keep_io: bool = True
    block: tuple[str, ...] = ()

    @classmethod
    def offers(cls, facts: Facts, backend: Backend) -> Iterable[Self]:
        """Yield the one setting, where float16 arithmetic is faster."""
        if "fp16" in backend.arithmetic and not facts.quantized:
            yield cls()

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Convert the model and return how many nodes became float16.

        Raises:
            Refused: No node can, or a sequence would have to change its type on the way.
        """
        edit.inline(model)
        optional = [n for n in edit.every_node(model) if n.op_type.startswith("Optional")]
        if optional:
            raise Refused(
                f"{optional[0].op_type} '{optional[0].name}' holds a value of optional type",
                fix="leave fp16 out",
            )
        model.opset_imports.setdefault("", CAST_OPSET)
        halver = Halver(model, kinds(model), self.block)
        halver.main(model.graph, keep_io=self.keep_io)
        if not halver.count:
            raise Refused("no float32 operator can be float16", fix="leave fp16 out")
        _drop_unread(model)
        if halver.kept:
            edit.note(model, f"{halver.kept} nodes stay in float32")
        if model.functions:
            edit.note(model, f"{len(model.functions)} local functions stay in float32")
        return halver.count


def _drop_unread(model: ir.Model) -> None:
    """Remove the float32 constants that nothing reads any more."""
    for graph in edit.every_graph(model):
        if isinstance(graph, ir.Graph):
            for value in list(graph.initializers.values()):
                edit.discard(value)
        for node in reversed(list(graph)):
            if node.op_type == "Constant" and not node.domain:
                edit.discard(node.outputs[0])
