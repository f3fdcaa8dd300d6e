"""Dynamic int8: weights in integers, activations rounded at run time. Needs no data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.roles import Role
from ortune.core.step import Quantizer, Step
from ortune.graph.ir import edit
from ortune.graph.ir.qdq import MICROSOFT
from ortune.quantizers.common import int8_rescues
from ortune.quantizers.common.dynamic import Dynamic
from ortune.quantizers.common.grid import Grid, weight_grid
from ortune.quantizers.common.layers import Layer, layers
from ortune.quantizers.common.node_filter import chosen
from ortune.quantizers.common.rounding.matrices import watch, worst
from ortune.quantizers.common.weights import embeddings as tables


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
        embeddings: Store tables that rows are looked up in as int8 too; the rows found are made
            float behind the Gather.
        leave_worst: Leave so many products in float: those whose rounding loses most of their
            output, by calibration data. Notes name them.
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
    embeddings: bool = False
    leave_worst: int = 0

    @property
    def portable(self) -> bool:
        """Activations are U8: S8 weights of 8 bits saturate on x86 without VNNI."""
        return self.reduce_range or self.weights != "s8"

    def made_portable(self) -> Self:
        return replace(self, reduce_range=True)

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield all layers, these with tables, and the recurrent ones alone.

        The last product behind recurrent layers costs accuracy.
        """
        if "int8-dynamic" not in backend.arithmetic or facts.quantized:
            return
        products = facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0)
        if facts.has("LSTM", "com.microsoft::Attention") or products > 1:
            yield cls()
            if facts.embeds:
                yield cls(embeddings=True)
        if facts.has("LSTM") and products:
            yield cls(ops=("LSTM",))

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield the worst two products in float, which is soon built, then the accuracy kit."""
        if int8_rescues.products(facts) > 1 and self.leave_worst == 0 and "MatMul" in self.ops:
            yield (replace(self, leave_worst=2),)
            yield from int8_rescues.before(self, int8_rescues.DYNAMIC)

    @property
    def calibrates(self) -> bool:
        return self.leave_worst > 0

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the products, to find the worst; none where all are wanted."""
        return watch(_plain(self.chosen(model))) if self.leave_worst else []

    def chosen(self, model: ir.Model) -> Sequence[Layer]:
        """Return the products that become integer, for steps that prepare their weights."""
        edit.inline(model)
        left = chosen(model, self.exclude, "exclude")
        ops = [op for op in self.ops if op in ("MatMul", "Gemm")]
        nodes = (node for graph in _graphs(model) for node in graph if node not in left)
        return [one for one in layers(nodes, ops) if min(one.shape[-2:]) >= self.min_side]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        edit.inline(model)
        left = chosen(model, self.exclude, "exclude") | self._worst(model, ranges)
        found = tables.tables(model) if self.embeddings else {}
        ops = (*self.ops, "Conv") if self.conv else self.ops
        rewriter = Dynamic(
            model.graph,
            kind=self.weights,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            min_side=self.min_side,
        )
        nodes = [node for graph in _graphs(model) for node in graph]
        alike = [node for node in nodes if node.op_type in ops and node not in left]
        count = sum(map(rewriter.rewrite, alike))
        if not count:
            raise Refused(
                f"no {', '.join(ops)} with a constant float32 weight of at least "
                f"{wording.count(self.min_side, 'row')} and as many columns to quantize",
                fix="see `ortune inspect` for the model's operators and dtypes",
            )
        if rewriter.foreign:
            model.opset_imports.setdefault(MICROSOFT, 1)
        tables.store_tables(model, edit.Editor(model.graph), found, {}, left, alone=True)
        for node in rewriter.refused:
            edit.refuse(model, node, "the integer operator lacks one of its attributes or inputs")
        others = len(alike) - count - len(rewriter.refused)
        if others:
            what = "layer" if others == 1 else "layers"
            edit.note(model, f"left in float: {others} {what} without a large constant weight")
        recurrent = sum(1 for node in edit.every_node(model) if node.op_type == "GRU")
        if recurrent:
            edit.note(model, f"{recurrent} GRU stay in float: there is no dynamic kernel")
        return count

    def _worst(self, model: ir.Model, ranges: Ranges) -> frozenset[ir.Node]:
        """Return the products to leave in float."""
        if not self.leave_worst:
            return frozenset()

        def grid(layer: Layer) -> Grid:
            axis = layer.axis if self.per_channel else None
            return weight_grid(layer.array(), axis, reduce_range=self.reduce_range)

        found = worst(_plain(self.chosen(model)), ranges, grid, self.leave_worst)
        if found:
            names = ", ".join(f"'{layer.node.name}'" for layer in found)
            edit.note(model, f"left in float, as rounding costs most there: {names}")
        return frozenset(layer.node for layer in found)


def _graphs(model: ir.Model) -> tuple[ir.Graph, ...]:
    """Return the main graph and the bodies of If, Loop and Scan."""
    return (model.graph, *model.graph.subgraphs())


def _plain(products: Sequence[Layer]) -> list[Layer]:
    """Stacked matrices are not weighed."""
    return [layer for layer in products if len(layer.shape) == 2]
