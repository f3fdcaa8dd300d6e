"""Dynamic int8: weights in integers, activations rounded at run time. Needs no data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.model.graph import edit
from ortune.model.graph.qdq import MICROSOFT
from ortune.quantization.dynamic import Dynamic
from ortune.quantization.node_filter import chosen
from ortune.quantization.roles import Role


@dataclass(frozen=True)
class Int8Dynamic(Quantizer):
    """Integer matrix products on activations that are rounded as they come.

    MatMul and Gemm become DynamicQuantizeLinear + MatMulInteger (standard operators, which
    onnxruntime fuses into one kernel); LSTM becomes DynamicQuantizeLSTM and Attention becomes
    QAttention, both of onnxruntime alone. A GRU has no such kernel and stays in float. Bodies of
    If, Loop and Scan are quantized too.

    Attributes:
        ops: Layers to quantize: MatMul, Gemm, LSTM, Attention.
        conv: Also make ConvInteger, which is several times slower than float on x86.
        per_channel: One weight step an output column instead of one a tensor.
        weights: Signed is the fast pair with the unsigned activations on x86.
        reduce_range: Weights in 7 bits, for x86 without VNNI, where 8-bit sums saturate.
        exclude: Node names to leave in float; * and ? match.
        min_side: Weights with fewer rows or columns stay in float.
    """

    needs_opset: ClassVar[int] = 11
    role: ClassVar[Role] = Role.DYNAMIC

    ops: tuple[str, ...] = ("MatMul", "Gemm", "LSTM", "Attention")
    conv: bool = False
    per_channel: bool = True
    weights: Literal["s8", "u8"] = "s8"
    reduce_range: bool = False
    exclude: tuple[str, ...] = ()
    min_side: int = 16

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield all layers, and the recurrent ones alone: the last product costs accuracy."""
        if "int8-dynamic" not in backend.arithmetic or facts.quantized:
            return
        products = facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0)
        if facts.has("LSTM", "com.microsoft::Attention") or products > 1:
            yield cls()
        if facts.has("LSTM") and products:
            yield cls(ops=("LSTM",))

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        edit.inline(model)
        left = chosen(model, self.exclude, "exclude")
        ops = (*self.ops, "Conv") if self.conv else self.ops
        rewriter = Dynamic(
            model.graph,
            kind=self.weights,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            min_side=self.min_side,
        )
        graphs = (model.graph, *model.graph.subgraphs())
        alike = [n for graph in graphs for n in graph if n.op_type in ops and n not in left]
        count = sum(map(rewriter.rewrite, alike))
        if not count:
            raise Refused(
                f"no {', '.join(ops)} with a constant float32 weight of at least "
                f"{wording.count(self.min_side, 'row')} and as many columns to quantize",
                fix="see `ortune inspect` for the model's operators and dtypes",
            )
        if rewriter.foreign:
            model.opset_imports.setdefault(MICROSOFT, 1)
        for node in rewriter.refused:
            edit.refuse(model, node, "the integer operator lacks one of its attributes or inputs")
        self._note(model, len(alike) - count - len(rewriter.refused))
        return count

    def _note(self, model: ir.Model, left: int) -> None:
        if left:
            what = "layer" if left == 1 else "layers"
            edit.note(model, f"left in float: {left} {what} without a large constant weight")
        recurrent = sum(1 for node in edit.every_node(model) if node.op_type == "GRU")
        if recurrent:
            edit.note(model, f"{recurrent} GRU stay in float: there is no dynamic kernel")
