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
from ortune.quantizers.common.contrib_ops import taken_attributes
from ortune.quantizers.common.grid import Grid, Kind
from ortune.quantizers.common.layers import Layer, assembled, layers
from ortune.quantizers.common.nodes import stand_in

Held: TypeAlias = tuple[ir.Value, ir.Value, ir.Value | None]
"""Constants of a weight: integers, steps, and zero points where there are any."""


Rounded: TypeAlias = Sequence[ir.Value]
"""What DynamicQuantizeLinear makes of an activation: integers, step and zero point."""


class Dynamic:
    """Rewrites layers of a main graph and its bodies; equal activations are rounded once a body.

    Attributes:
        foreign: Whether an operator of com.microsoft was written.
        refused: Layers whose attributes or inputs the integer operator does not have.
    """

    def __init__(
        self, graph: ir.Graph, *, kind: Kind, per_channel: bool, reduce_range: bool, min_side: int
    ) -> None:
        self.foreign = False
        self.refused: list[ir.Node] = []
        self._opset = graph.opset_imports.get("", 0)
        self._same: dict[tuple[str, bytes], Held] = {}
        self._editor = edit.Editor(graph)
        self._kind = kind
        self._per_channel = per_channel
        self._reduce_range = reduce_range
        self._min_side = min_side
        self._rounded: dict[tuple[ir.Value, ir.Graph | None], Rounded] = {}
        self._weights: dict[tuple[ir.Value, str], Held] = {}

    def rewrite(self, node: ir.Node) -> bool:
        """Rewrite one node if it can be, and say so."""
        match node.op_type:
            case "LSTM" if not node.domain:
                return self._lstm(node)
            case "Attention" if node.domain == MICROSOFT:
                inputs: list[ir.Value | None] = [*node.inputs, *[None] * (7 - len(node.inputs))]
                x, weight, bias, mask, past, *more = inputs
                array = edit.const_array(weight)
                attributes = taken_attributes(node, "QAttention")
                if array is None or array.dtype != np.float32 or x is None or bias is None:
                    return False
                if attributes is None or any(more):
                    self.refused.append(node)
                    return False
                rounded, grid, stem = self._round(node, x), self._grid(array, 1), str(node.name)
                integers, scale, zero = self._constants(
                    f"{stem}_weight", grid.quantize(array), grid.scale, grid.zero
                )
                values, step, middle = rounded
                weights = [values, integers, bias, step, scale]
                self._fused(node, "QAttention", [*weights, mask, middle, zero, past], attributes)
                return True
            case "Conv" | "MatMul" | "Gemm":
                found = next(layers([node], (node.op_type,)), None)
                if found is None:
                    return False
                return self._conv(found) if found.convolves else self._product(found)
            case _:
                return False

    def _product(self, layer: Layer) -> bool:
        if min(layer.shape[-2:]) < self._min_side:
            return False
        node, rounded = layer.node, self._round(layer.node, layer.x)
        held = self._weight(layer, float(edit.attribute(node, "alpha", 1.0)))
        bias = layer.bias
        if bias is not None:
            bias = self._times(node, bias, float(edit.attribute(node, "beta", 1.0)))
        self._integer(node, "MatMulInteger", rounded, held, bias)
        return True

    def _conv(self, layer: Layer) -> bool:
        """ConvInteger has an onnxruntime kernel for unsigned weights and one zero point alone."""
        bias = edit.const_array(layer.bias)
        if layer.bias is not None and bias is None:
            return False
        node, rounded, array = layer.node, self._round(layer.node, layer.x), layer.array()
        grid = self._grid(array, 0, "u8")
        stem = str(layer.weight.name)
        shape = (1, -1, *[1] * (array.ndim - 2))
        scale = grid.scale.reshape(shape)
        held = self._constants(stem, grid.quantize(array), scale, np.asarray(128, np.uint8))
        added = None
        if bias is not None:
            added = self._editor.constant(f"{stem}_bias", bias.reshape(shape))
        self._integer(node, "ConvInteger", rounded, held, added, dict(node.attributes))
        return True

    def _lstm(self, node: ir.Node) -> bool:
        inputs: list[ir.Value | None] = [*node.inputs, *[None] * (8 - len(node.inputs))]
        w, r = assembled(inputs[1], self._opset), assembled(inputs[2], self._opset)
        if w is None or r is None or w.dtype != np.float32 or min(w.shape[1:]) < self._min_side:
            return False
        attributes = taken_attributes(node, "DynamicQuantizeLSTM")
        if attributes is None:
            self.refused.append(node)
            return False
        held = [self._gates(str(node.name), part, letter) for part, letter in ((w, "W"), (r, "R"))]
        integers = [inputs[0], held[0][0], held[1][0]]
        steps = [*held[0][1:], *held[1][1:]]
        inputs = [*integers, *inputs[3:8], *steps]
        self._fused(node, "DynamicQuantizeLSTM", inputs, attributes)
        return True

    def _gates(self, stem: str, array: NDArray[Any], letter: str) -> Held:
        """Store gates [directions, 4 * hidden, inputs] as the kernel wants them: transposed.

        Layers in several branches often have the same: those are stored once.
        """
        key = (letter, hashlib.sha256(array.tobytes()).digest())
        if key not in self._same:
            directions, gates, _ = array.shape
            rows = directions * gates if self._per_channel else directions
            flat = array.reshape(rows, -1)
            grid = grids.weight_grid(flat, 0, self._kind, reduce_range=self._reduce_range)
            steps = (directions, gates) if self._per_channel else (directions,)
            integers = grid.quantize(flat).reshape(array.shape).transpose(0, 2, 1)
            scale, zero = grid.scale.reshape(steps), grid.zero.reshape(steps)
            self._same[key] = self._constants(f"{stem}_{letter}", integers, scale, zero)
        return self._same[key]

    def _fused(
        self,
        node: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, ir.Attr],
    ) -> None:
        made = self._editor.node(
            op,
            inputs,
            attributes,
            name=f"{node.name}_int8",
            domain=MICROSOFT,
            outputs=len(node.outputs),
        )
        self._swap(node, made)

    def _weight(self, layer: Layer, alpha: float) -> Held:
        """Store a weight [K, N] (transposed if the layer reads it so) with its steps, once."""
        key = (layer.weight, f"{layer.op} {layer.axis} {alpha}")
        if key not in self._weights:
            array = layer.array()
            array = array.T if layer.op == "Gemm" and layer.axis == 0 else array
            grid = self._grid(array, 1 if array.ndim == 2 else None)
            scale = np.asarray((grid.scale * np.float32(alpha)).astype(np.float32))
            zero = grid.zero if self._kind == "u8" else None
            stem = str(layer.weight.name)
            self._weights[key] = self._constants(stem, grid.quantize(array), scale, zero)
        return self._weights[key]

    def _grid(self, array: NDArray[Any], axis: int | None, kind: Kind | None = None) -> Grid:
        axis = axis if self._per_channel else None
        return grids.weight_grid(array, axis, kind or self._kind, reduce_range=self._reduce_range)

    def _constants(
        self, stem: str, integers: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any] | None
    ) -> Held:
        add = self._editor.constant
        values, steps = np.ascontiguousarray(integers), add(f"{stem}_scale", scale)
        offset = None if zero is None else add(f"{stem}_zero", zero)
        return add(f"{stem}_int", values), steps, offset

    def _round(self, node: ir.Node, x: ir.Value) -> Rounded:
        key = (x, node.graph)
        if key not in self._rounded:
            made = self._editor.node(
                "DynamicQuantizeLinear", [x], name=f"{x.name}_round", outputs=3
            )
            edit.insert_before(node, made)
            self._rounded[key] = made.outputs
        return self._rounded[key]

    def _integer(
        self,
        node: ir.Node,
        op: str,
        x: Rounded,
        held: Held,
        bias: ir.Value | None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        (values, step, middle), (weights, scale, zero) = x, held
        integers = [values, weights, middle, *([] if zero is None else [zero])]
        product = self._before(node, op, integers, attributes)
        wide = self._before(node, "Cast", [product], {"to": int(ir.DataType.FLOAT)})
        steps = self._before(node, "Mul", [step, scale])
        result = self._before(node, "Mul", [wide, steps])
        if bias is not None:
            result = self._before(node, "Add", [result, bias])
        last = result.producer()
        assert last is not None
        self._swap(node, last)

    def _times(self, node: ir.Node, bias: ir.Value, beta: float) -> ir.Value:
        if beta == 1.0:
            return bias
        array = edit.const_array(bias)
        if array is not None:
            return self._editor.constant(f"{bias.name}_beta", (array * beta).astype(np.float32))
        factor = self._editor.constant(f"{bias.name}_beta", np.asarray(beta, np.float32))
        return self._before(node, "Mul", [bias, factor])

    def _before(
        self,
        node: ir.Node,
        op: str,
        inputs: list[ir.Value],
        attributes: dict[str, Any] | None = None,
    ) -> ir.Value:
        made = self._editor.node(op, inputs, attributes, name=f"{node.name}_{op}")
        edit.insert_before(node, made)
        return made.outputs[0]

    def _swap(self, node: ir.Node, made: ir.Node) -> None:
        """Let a node stand for another, which goes with its weights."""
        self.foreign = self.foreign or made.domain == MICROSOFT
        if made.graph is None:
            edit.insert_before(node, made)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            stand_in(old, new)
