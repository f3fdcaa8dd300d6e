"""Dynamic int8: weights in integers, activations rounded at run time. Needs no data."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.roles import Role
from ortune.core.step import Quantizer, Step
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common import rounding
from ortune.quantizers.common.grid import Grid, Kind, make_weight_grid
from ortune.quantizers.common.layers import (
    MASK,
    Layer,
    evaluate_constant,
    find_layers,
    flatten_model,
    has_bounded_values,
    note_unbounded_weights,
    refuse_without_layers,
    resolve_transpose,
)
from ortune.quantizers.common.nodes import match_nodes, replace_value, transfer_attributes
from ortune.quantizers.common.weights import integer_weights


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
        has_kernels = "int8-dynamic" in backend.arithmetic
        if facts.quantized or not (has_kernels and facts.has_float_layers):
            return
        products = rounding.count_products(facts)
        if facts.has("LSTM", "com.microsoft::Attention") or products > 1:
            yield cls()
            if facts.embeds:
                yield cls(embeddings=True)
        if facts.has("LSTM") and products:
            yield cls(ops=("LSTM",))

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield the worst two products in float, which is soon built, then the accuracy kit."""
        several = rounding.count_products(facts) > 1
        if several and self.leave_worst == 0 and "MatMul" in self.ops:
            yield (replace(self, leave_worst=2),)
            kit = ((Role.ROUNDS,), (Role.SMOOTHS, Role.ROUNDS), (Role.SMOOTHS,))
            yield from rounding.prepend_kit(self, kit)

    @property
    def calibrates(self) -> bool:
        return self.leave_worst > 0

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the products, to find the worst; none where all are wanted."""
        if not self.leave_worst:
            return []
        return rounding.list_moment_probes(_list_matrix_layers(self.select_layers(model)))

    def select_layers(self, model: ir.Model) -> Sequence[Layer]:
        """Return the products that become integer, for steps that prepare their weights."""
        flatten_model(model)
        excluded = match_nodes(model, self.exclude, "exclude")
        ops = [op for op in self.ops if op in ("MatMul", "Gemm")]
        nodes = (node for graph in _list_graphs(model) for node in graph if node not in excluded)
        layers = find_layers(nodes, ops)
        return [layer for layer in layers if min(layer.shape[-2:]) >= self.min_side]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        flatten_model(model)
        excluded = match_nodes(model, self.exclude, "exclude")
        excluded |= self._find_worst_nodes(model, ranges)
        embedding_tables = integer_weights.find_tables(model)
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
        unbounded = note_unbounded_weights(model, (*ops, "Gather") if self.embeddings else ops)
        count = sum(map(rewriter.rewrite_node, alike))
        if not count:
            refuse_without_layers(
                model,
                f"no {', '.join(ops)} with a constant float32 weight of at least "
                f"{wording.format_count(self.min_side, 'row')} and as many columns to quantize"
                f"{unbounded}",
            )
        if rewriter.foreign:
            model.opset_imports.setdefault(qdq.MICROSOFT, 1)
        integer_weights.store_tables(
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
            layers = wording.format_count(skipped, "layer")
            edit.add_note(model, f"left in float: {layers} without a large constant weight")
        recurrent = sum(1 for node in edit.walk_nodes(model) if node.op_type == "GRU")
        if recurrent:
            edit.add_note(model, f"{recurrent} GRU stay in float: there is no dynamic kernel")
        return count

    def _find_worst_nodes(self, model: ir.Model, ranges: Ranges) -> frozenset[ir.Node]:
        """Return the products to leave in float."""
        if not self.leave_worst:
            return frozenset()
        layers, errors = _list_matrix_layers(self.select_layers(model)), []
        for place, layer in enumerate(layers):
            axis, array = layer.axis if self.per_channel else None, layer.read_weight()
            grid = make_weight_grid(array, axis, reduce_range=self.reduce_range)
            if (error := rounding.compute_relative_error(layer, ranges, grid)) is not None:
                errors.append((error, -place))
        # Worst first, but never all of them.
        chosen = sorted(errors, reverse=True)[: min(self.leave_worst, len(layers) - 1)]
        worst_layers = [layers[-place] for _, place in chosen]
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


WeightConstants: TypeAlias = tuple[ir.Value, ir.Value, ir.Value | None]
"""Constants of a weight: integers, steps, and zero points where there are any."""


QuantizedActivation: TypeAlias = Sequence[ir.Value]
"""What DynamicQuantizeLinear makes of an activation: integers, step and zero point."""


class DynamicRewriter:
    """Rewrites layers of a main graph and its bodies; equal activations are rounded once a body.

    Attributes:
        foreign: Whether an operator of com.microsoft was written.
        refused: Layers whose attributes or inputs the integer operator does not have.
        stored: Matrices in integers, by their float constant.
    """

    def __init__(
        self,
        graph: ir.Graph,
        nodes: Sequence[ir.Node],
        *,
        kind: Kind,
        per_channel: bool,
        reduce_range: bool,
        min_side: int,
    ) -> None:
        self.foreign = False
        self.refused: list[ir.Node] = []
        self.stored: dict[ir.Value, integer_weights.StoredWeight] = {}
        self._opset = graph.opset_imports.get("", 0)
        self._stored_gates: dict[tuple[str, bytes], WeightConstants] = {}
        self._editor = edit.Editor(graph)
        self._kind = kind
        self._per_channel = per_channel
        self._reduce_range = reduce_range
        self._min_side = min_side
        self._rounded: dict[tuple[ir.Value, ir.Graph | None], QuantizedActivation] = {}
        self._weights: dict[tuple[ir.Value | None, str], WeightConstants] = {}
        self._scaled: dict[tuple[ir.Value, float], ir.Value] = {}
        self._turned: dict[tuple[object, ...], ir.Value] = {}
        self._channels: dict[ir.Value, set[int]] = {}
        for layer in find_layers(nodes, ("MatMul", "Gemm")):
            source, order = resolve_transpose(layer.weight)
            self._channels.setdefault(source, set()).add(order[layer.axis])

    def rewrite_node(self, node: ir.Node) -> bool:
        """Rewrite one node if it can be, and say so."""
        match node.op_type:
            case "LSTM" if not node.domain:
                return self._rewrite_lstm(node)
            case "Attention" if node.domain == qdq.MICROSOFT:
                inputs: list[ir.Value | None] = [*node.inputs, *[None] * (7 - len(node.inputs))]
                x, weight, bias, mask, past, *more = inputs
                array = edit.const_array(weight)
                attributes = transfer_attributes(node, "QAttention")
                if array is None or array.dtype != np.float32 or x is None or bias is None:
                    return False
                if not has_bounded_values(weight):
                    return False
                if attributes is None or any(more):
                    self.refused.append(node)
                    return False
                rounded = self._quantize_activation(node, x)
                if (weight, "Attention") not in self._weights:
                    grid = self._make_grid(array, 1)
                    self._weights[weight, "Attention"] = self._add_constants(
                        f"{node.name}_weight", grid.quantize(array), grid.scale, grid.zero
                    )
                integers, scale, zero = self._weights[weight, "Attention"]
                values, step, middle = rounded
                weights = [values, integers, bias, step, scale]
                self._replace_with_fused(
                    node, "QAttention", [*weights, mask, middle, zero, past], attributes
                )
                return True
            case "Conv" | "MatMul" | "Gemm":
                layer = next(find_layers([node], (node.op_type,)), None)
                if layer is None:
                    return False
                rewrite = self._rewrite_conv if layer.convolves else self._rewrite_matmul
                return rewrite(layer)
            case _:
                return False

    def _rewrite_matmul(self, layer: Layer) -> bool:
        if min(layer.shape[-2:]) < self._min_side:
            return False
        node, rounded = layer.node, self._quantize_activation(layer.node, layer.x)
        weight = self._read_matrix(layer, float(edit.read_attribute(node, "alpha", 1.0)))
        bias, beta = layer.bias, float(edit.read_attribute(node, "beta", 1.0))
        if bias is not None and beta != 1.0:
            name, array = f"{bias.name}_beta", edit.const_array(bias)
            if array is not None:
                bias = self._editor.add_constant(name, (array * beta).astype(np.float32))
            else:
                factor = self._editor.add_constant(name, np.asarray(beta, np.float32))
                bias = self._insert_node(node, "Mul", [bias, factor])
        self._write_integer_product(node, "MatMulInteger", rounded, weight, bias)
        return True

    def _rewrite_conv(self, layer: Layer) -> bool:
        """ConvInteger has an onnxruntime kernel for unsigned weights and one zero point alone."""
        bias = edit.const_array(layer.bias)
        if layer.bias is not None and bias is None:
            return False
        node = layer.node
        rounded = self._quantize_activation(layer.node, layer.x)
        stem, key = str(layer.weight.name), (layer.weight, "Conv")
        shape = (1, -1, *[1] * (len(layer.shape) - 2))
        if key not in self._weights:
            array = layer.read_weight()
            grid = self._make_grid(array, 0, "u8")
            self._weights[key] = self._add_constants(
                stem, grid.quantize(array), grid.scale.reshape(shape), np.asarray(128, np.uint8)
            )
        weight = self._weights[key]
        added = None
        if bias is not None:
            added = self._editor.add_constant(f"{stem}_bias", bias.reshape(shape))
        self._write_integer_product(
            node, "ConvInteger", rounded, weight, added, dict(node.attributes)
        )
        return True

    def _rewrite_lstm(self, node: ir.Node) -> bool:
        inputs: list[ir.Value | None] = [*node.inputs, *[None] * (8 - len(node.inputs))]
        w, r = evaluate_constant(inputs[1], self._opset), evaluate_constant(inputs[2], self._opset)
        if w is None or r is None or w.dtype != np.float32 or min(w.shape[1:]) < self._min_side:
            return False
        if not all(part.min() > -MASK and part.max() < MASK for part in (w, r)):
            return False
        attributes = transfer_attributes(node, "DynamicQuantizeLSTM")
        if attributes is None:
            self.refused.append(node)
            return False
        name = str(node.name)
        gates = [self._store_gates(name, w, "W"), self._store_gates(name, r, "R")]
        integers = [inputs[0], gates[0][0], gates[1][0]]
        steps = [*gates[0][1:], *gates[1][1:]]
        inputs = [*integers, *inputs[3:8], *steps]
        self._replace_with_fused(node, "DynamicQuantizeLSTM", inputs, attributes)
        return True

    def _store_gates(self, stem: str, array: NDArray[Any], letter: str) -> WeightConstants:
        """Store gates [directions, 4 * hidden, inputs] as the kernel wants them: transposed.

        Layers in several branches often have the same: those are stored once.
        """
        key = (letter, hashlib.sha256(array.tobytes()).digest())
        if key not in self._stored_gates:
            directions, gates, _ = array.shape
            rows = directions * gates if self._per_channel else directions
            flat = array.reshape(rows, -1)
            grid = make_weight_grid(flat, 0, self._kind, reduce_range=self._reduce_range)
            steps = (directions, gates) if self._per_channel else (directions,)
            integers = grid.quantize(flat).reshape(array.shape).transpose(0, 2, 1)
            scale, zero = grid.scale.reshape(steps), grid.zero.reshape(steps)
            self._stored_gates[key] = self._add_constants(
                f"{stem}_{letter}", integers, scale, zero
            )
        return self._stored_gates[key]

    def _replace_with_fused(
        self,
        node: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, ir.Attr],
    ) -> None:
        fused = self._editor.make_node(
            op,
            inputs,
            attributes,
            name=f"{node.name}_int8",
            domain=qdq.MICROSOFT,
            outputs=len(node.outputs),
        )
        self._replace_node(node, fused)

    def _read_matrix(self, layer: Layer, alpha: float) -> WeightConstants:
        """Return a layer's weight as [K, N], turned where it is stored the other way round.

        Runtimes turn the integers once, when they load the file.
        """
        source, order = resolve_transpose(layer.weight)
        if source not in self.stored:
            # Once for all that read it, with channels that all of them can use. A table that rows
            # are looked up in keeps its order of axes.
            array = edit.const_array(source)
            assert array is not None
            axes = self._channels[source]
            axis = next(iter(axes)) if array.ndim == 2 and len(axes) == 1 else None
            grid = self._make_grid(array, axis)
            kept = (
                tuple(range(array.ndim))
                if integer_weights.find_lookups(source)
                else _order_rows(layer, order)
            )
            self.stored[source] = integer_weights.StoredWeight.add_weight(
                self._editor,
                str(source.name),
                np.ascontiguousarray(grid.quantize(array).transpose(kept)),
                grid,
                None if grid.axis is None else kept.index(grid.axis),
                kept,
            )
        stored = self.stored[source]
        perm = [stored.order.index(axis) for axis in _order_rows(layer, order)]
        integers, scale = stored.integers, stored.scale
        if alpha != 1.0:
            if (source, alpha) not in self._scaled:
                self._scaled[source, alpha] = self._editor.add_constant(
                    f"{source.name}_scale", np.asarray(stored.grid.scale * np.float32(alpha))
                )
            scale = self._scaled[source, alpha]
        if perm != sorted(perm):
            home = layer.node.graph
            assert home is not None
            key = (integers, home, *perm)
            if key not in self._turned:
                node = self._editor.make_node("Transpose", [integers], {"perm": perm})
                edit.insert_first(home, node)
                self._turned[key] = node.outputs[0]
            integers = self._turned[key]
        return integers, scale, stored.zero if self._kind == "u8" else None

    def _make_grid(self, array: NDArray[Any], axis: int | None, kind: Kind | None = None) -> Grid:
        axis = axis if self._per_channel else None
        return make_weight_grid(array, axis, kind or self._kind, reduce_range=self._reduce_range)

    def _add_constants(
        self, stem: str, integers: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any] | None
    ) -> WeightConstants:
        add = self._editor.add_constant
        values, steps = np.ascontiguousarray(integers), add(f"{stem}_scale", scale)
        offset = None if zero is None else add(f"{stem}_zero", zero)
        return add(f"{stem}_int", values), steps, offset

    def _quantize_activation(self, node: ir.Node, x: ir.Value) -> QuantizedActivation:
        key = (x, node.graph)
        if key not in self._rounded:
            quantize = self._editor.make_node(
                "DynamicQuantizeLinear", [x], name=f"{x.name}_round", outputs=3
            )
            edit.insert_before(node, quantize)
            self._rounded[key] = quantize.outputs
        return self._rounded[key]

    def _write_integer_product(
        self,
        node: ir.Node,
        op: str,
        x: QuantizedActivation,
        weight: WeightConstants,
        bias: ir.Value | None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        (values, step, middle), (weights, scale, zero) = x, weight
        integers = [values, weights, middle, *([] if zero is None else [zero])]
        product = self._insert_node(node, op, integers, attributes)
        wide = self._insert_node(node, "Cast", [product], {"to": int(ir.DataType.FLOAT)})
        steps = self._insert_node(node, "Mul", [step, scale])
        result = self._insert_node(node, "Mul", [wide, steps])
        if bias is not None:
            result = self._insert_node(node, "Add", [result, bias])
        last = result.producer()
        assert last is not None
        self._replace_node(node, last)

    def _insert_node(
        self,
        node: ir.Node,
        op: str,
        inputs: list[ir.Value],
        attributes: dict[str, Any] | None = None,
    ) -> ir.Value:
        return self._editor.add_node(node, op, inputs, attributes, name=f"{node.name}_{op}")

    def _replace_node(self, node: ir.Node, replacement: ir.Node) -> None:
        """Let a node stand for another, which goes with its weights."""
        self.foreign = self.foreign or replacement.domain == qdq.MICROSOFT
        if replacement.graph is None:
            edit.insert_before(node, replacement)
        for old, new in zip(node.outputs, replacement.outputs, strict=True):
            replace_value(old, new)


def _order_rows(layer: Layer, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return a weight's order of axes that ends in what is summed and the channels, [K, N]."""
    return order[::-1] if layer.op == "Gemm" and layer.axis == 0 else order
