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
from ortune.quantizers.common.dynamic import DynamicRewriter
from ortune.quantizers.common.grid import Grid, make_weight_grid
from ortune.quantizers.common.layers import (
    Layer,
    find_layers,
    flatten_model,
    note_unbounded_weights,
)
from ortune.quantizers.common.node_filter import match_nodes
from ortune.quantizers.common.rounding.matrices import find_worst_layers, list_moment_probes
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
            float behind the Gather. A table that a layer multiplies as well is stored once in any
            case.
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
        if (
            "int8-dynamic" not in backend.arithmetic
            or facts.quantized
            or not facts.has_float_layers
        ):
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
        if (
            int8_rescues.count_products(facts) > 1
            and self.leave_worst == 0
            and "MatMul" in self.ops
        ):
            yield (replace(self, leave_worst=2),)
            yield from int8_rescues.prepend_kit(self, int8_rescues.DYNAMIC)

    @property
    def calibrates(self) -> bool:
        return self.leave_worst > 0

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the products, to find the worst; none where all are wanted."""
        return (
            list_moment_probes(_list_matrix_layers(self.select_layers(model)))
            if self.leave_worst
            else []
        )

    def select_layers(self, model: ir.Model) -> Sequence[Layer]:
        """Return the products that become integer, for steps that prepare their weights."""
        flatten_model(model)
        excluded = match_nodes(model, self.exclude, "exclude")
        ops = [op for op in self.ops if op in ("MatMul", "Gemm")]
        nodes = (node for graph in _list_graphs(model) for node in graph if node not in excluded)
        return [
            layer for layer in find_layers(nodes, ops) if min(layer.shape[-2:]) >= self.min_side
        ]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        flatten_model(model)
        excluded = match_nodes(model, self.exclude, "exclude") | self._find_worst_nodes(
            model, ranges
        )
        embedding_tables = tables.find_tables(model)
        ops = (*self.ops, "Conv") if self.conv else self.ops
        nodes = [node for graph in _list_graphs(model) for node in graph]
        alike = [node for node in nodes if node.op_type in ops and node not in excluded]
        rewriter = DynamicRewriter(
            model.graph,
            alike,
            kind=self.weights,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            min_side=self.min_side,
        )
        note_unbounded_weights(model, (*ops, "Gather") if self.embeddings else ops)
        count = sum(map(rewriter.rewrite_node, alike))
        if not count:
            raise Refused(
                f"no {', '.join(ops)} with a constant float32 weight of at least "
                f"{wording.format_count(self.min_side, 'row')} and as many columns to quantize",
                fix="see `ortune inspect` for the model's operators and dtypes",
            )
        if rewriter.foreign:
            model.opset_imports.setdefault(MICROSOFT, 1)
        tables.store_tables(
            model,
            edit.Editor(model.graph),
            embedding_tables,
            rewriter.stored,
            excluded,
            alone=self.embeddings,
        )
        for stored in rewriter.stored.values():
            for part in (stored.scale, stored.zero):
                edit.discard_constant(part)
        for node in rewriter.refused:
            edit.note_refusal(
                model, node, "the integer operator lacks one of its attributes or inputs"
            )
        skipped = len(alike) - count - len(rewriter.refused)
        if skipped:
            noun = "layer" if skipped == 1 else "layers"
            edit.add_note(
                model, f"left in float: {skipped} {noun} without a large constant weight"
            )
        recurrent = sum(1 for node in edit.walk_nodes(model) if node.op_type == "GRU")
        if recurrent:
            edit.add_note(model, f"{recurrent} GRU stay in float: there is no dynamic kernel")
        return count

    def _find_worst_nodes(self, model: ir.Model, ranges: Ranges) -> frozenset[ir.Node]:
        """Return the products to leave in float."""
        if not self.leave_worst:
            return frozenset()

        def grid(layer: Layer) -> Grid:
            axis = layer.axis if self.per_channel else None
            return make_weight_grid(layer.read_weight(), axis, reduce_range=self.reduce_range)

        worst_layers = find_worst_layers(
            _list_matrix_layers(self.select_layers(model)), ranges, grid, self.leave_worst
        )
        if worst_layers:
            names = ", ".join(f"'{layer.node.name}'" for layer in worst_layers)
            edit.add_note(model, f"left in float, as rounding costs most there: {names}")
        return frozenset(layer.node for layer in worst_layers)


def _list_graphs(model: ir.Model) -> tuple[ir.Graph, ...]:
    """Return the main graph and the bodies of If, Loop and Scan."""
    return (model.graph, *model.graph.subgraphs())


def _list_matrix_layers(products: Sequence[Layer]) -> list[Layer]:
    """Stacked matrices are not weighed."""
    return [layer for layer in products if len(layer.shape) == 2]
