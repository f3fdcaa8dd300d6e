"""Rewrites single layers to integer arithmetic with run-time activation steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit
from ortune.graph.ir.qdq import MICROSOFT
from ortune.quantizers.common import grid as grids
from ortune.quantizers.common.contrib_ops import transfer_attributes
from ortune.quantizers.common.grid import Grid, Kind
from ortune.quantizers.common.layers import (
    MASK,
    Layer,
    evaluate_constant,
    find_layers,
    has_bounded_values,
    resolve_transpose,
)
from ortune.quantizers.common.nodes import replace_value
from ortune.quantizers.common.weights.integer_weights import StoredWeight, find_lookups

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
        self.stored: dict[ir.Value, StoredWeight] = {}
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
            case "Attention" if node.domain == MICROSOFT:
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
                return (
                    self._rewrite_conv(layer) if layer.convolves else self._rewrite_matmul(layer)
                )
            case _:
                return False

    def _rewrite_matmul(self, layer: Layer) -> bool:
        if min(layer.shape[-2:]) < self._min_side:
            return False
        node, rounded = layer.node, self._quantize_activation(layer.node, layer.x)
        weight = self._read_matrix(layer, float(edit.read_attribute(node, "alpha", 1.0)))
        bias = layer.bias
        if bias is not None:
            bias = self._scale_bias(node, bias, float(edit.read_attribute(node, "beta", 1.0)))
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
                stem,
                grid.quantize(array),
                grid.scale.reshape(shape),
                np.asarray(128, np.uint8),
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
        gates = [
            self._store_gates(str(node.name), part, letter)
            for part, letter in ((w, "W"), (r, "R"))
        ]
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
            grid = grids.make_weight_grid(flat, 0, self._kind, reduce_range=self._reduce_range)
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
            domain=MICROSOFT,
            outputs=len(node.outputs),
        )
        self._replace_node(node, fused)

    def _store_matrix(self, layer: Layer) -> StoredWeight:
        """Store a weight, once for all that read it, with channels that all of them can use.

        A table that rows are looked up in keeps its order of axes.
        """
        source, order = resolve_transpose(layer.weight)
        if source not in self.stored:
            array = edit.const_array(source)
            assert array is not None
            axes = self._channels[source]
            axis = next(iter(axes)) if array.ndim == 2 and len(axes) == 1 else None
            grid = self._make_grid(array, axis)
            kept = tuple(range(array.ndim)) if find_lookups(source) else _order_rows(layer, order)
            self.stored[source] = StoredWeight.add_weight(
                self._editor,
                str(source.name),
                np.ascontiguousarray(grid.quantize(array).transpose(kept)),
                grid,
                None if grid.axis is None else kept.index(grid.axis),
                kept,
            )
        return self.stored[source]

    def _read_matrix(self, layer: Layer, alpha: float) -> WeightConstants:
        """Return a layer's weight as [K, N], turned where it is stored the other way round.

        Runtimes turn the integers once, when they load the file.
        """
        stored = self._store_matrix(layer)
        source, order = resolve_transpose(layer.weight)
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
        return grids.make_weight_grid(
            array, axis, kind or self._kind, reduce_range=self._reduce_range
        )

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

    def _scale_bias(self, node: ir.Node, bias: ir.Value, beta: float) -> ir.Value:
        if beta == 1.0:
            return bias
        array = edit.const_array(bias)
        if array is not None:
            return self._editor.add_constant(
                f"{bias.name}_beta", (array * beta).astype(np.float32)
            )
        factor = self._editor.add_constant(f"{bias.name}_beta", np.asarray(beta, np.float32))
        return self._insert_node(node, "Mul", [bias, factor])

    def _insert_node(
        self,
        node: ir.Node,
        op: str,
        inputs: list[ir.Value],
        attributes: dict[str, Any] | None = None,
    ) -> ir.Value:
        new_node = self._editor.make_node(op, inputs, attributes, name=f"{node.name}_{op}")
        edit.insert_before(node, new_node)
        return new_node.outputs[0]

    def _replace_node(self, node: ir.Node, replacement: ir.Node) -> None:
        """Let a node stand for another, which goes with its weights."""
        self.foreign = self.foreign or replacement.domain == MICROSOFT
        if replacement.graph is None:
            edit.insert_before(node, replacement)
        for old, new in zip(node.outputs, replacement.outputs, strict=True):
            replace_value(old, new)


def _order_rows(layer: Layer, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return a weight's order of axes that ends in what is summed and the channels, [K, N]."""
    return order[::-1] if layer.op == "Gemm" and layer.axis == 0 else order
