"""Stores the weights and biases of layers as integers behind DequantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model import edit
from ortune.quantizers import _grid
from ortune.quantizers._grid import Grid
from ortune.quantizers._layers import Layer, discard_weight
from ortune.quantizers._smooth import Smoothing


@dataclass(frozen=True)
class Held:
    """A stored weight: the float values as the graph sees them, and their grid."""

    value: ir.Value
    grid: Grid


class Packer:
    """Packs the layers of one main graph; a weight that several layers share is stored once.

    Args:
        editor: Of the main graph.
        steps: Activation -> step of its grid, a scalar.
        smooth: Activation -> what was done to it.
        per_channel: One weight step an output channel.
        reduce_range: Weights in 7 bits.
    """

    def __init__(
        self,
        editor: edit.Editor,
        steps: Mapping[ir.Value, NDArray[np.float32]],
        smooth: Mapping[ir.Value, Smoothing],
        *,
        per_channel: bool,
        reduce_range: bool,
    ) -> None:
        self._editor = editor
        self._steps = steps
        self._smooth = smooth
        self._per_channel = per_channel
        self._reduce_range = reduce_range
        self._held: dict[tuple[ir.Value, int | None, float, ir.Value | None], Held] = {}

    def pack(self, layer: Layer) -> None:
        """Store a layer's weight and bias."""
        alone = len(layer.shape) == 2 or layer.convolves
        axis = layer.axis if self._per_channel and alone else None
        smooth = self._smooth.get(layer.x)
        alpha = self._take_alpha(layer.node)
        key = (layer.weight, axis, alpha, None if smooth is None else layer.x)
        array = layer.array() if alpha == 1.0 else layer.array() * np.float32(alpha)
        fitted = array if smooth is None else smooth.scaled(layer, array)
        held = self._held.get(key)
        grid = held.grid if held else self._grid(fitted, axis)
        wide = grid if layer.bias is None else self._bias(layer, layer.node, 2, grid)
        if held is None or not np.array_equal(wide.scale, grid.scale):
            held = Held(self._store(str(layer.weight.name), wide.quantize(fitted), wide), wide)
            self._held.setdefault(key, held)
        last = self._joined(layer, held.grid) if layer.op == "MatMul" else layer.node
        if smooth is not None and smooth.split:
            self._beside(layer, np.take(array, smooth.split, 1 - layer.axis), smooth.split, last)
        layer.node.replace_input_with(1, held.value)
        discard_weight(layer.weight)

    def _grid(self, array: NDArray[np.float32], axis: int | None) -> Grid:
        return _grid.weight_grid(array, axis, reduce_range=self._reduce_range)

    @staticmethod
    def _take_alpha(node: ir.Node) -> float:
        """Take the factor off a Gemm: the integer kernel has none."""
        alpha = float(edit.attribute(node, "alpha", 1.0)) if node.op_type == "Gemm" else 1.0
        if alpha != 1.0:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", 1.0)
        return alpha

    def _joined(self, layer: Layer, grid: Grid) -> ir.Node:
        """Keep what onnxruntime makes of a MatMul and an Add behind it in integers.

        It joins the two to one Gemm for matrices and for tensors of fixed shape, and a Gemm whose
        bias is float stays in float: a constant bias is rounded, and a MatMul before any other
        addition becomes a Gemm at once.

        Returns:
            The last node of the layer: the Add of a bias, else the product.
        """
        shape, uses = layer.x.shape, tuple(layer.node.outputs[0].uses())
        if len(uses) != 1 or uses[0].node.op_type != "Add":
            return layer.node
        add, index = uses[0].node, 1 - uses[0].idx
        array = edit.const_array(add.inputs[index])
        if array is not None and array.shape == (layer.shape[-1],):
            if shape is not None and (len(shape) == 2 or shape.is_static()):
                self._bias(layer, add, index, grid)
            return add
        if shape is not None and len(shape) == 2:
            layer.node.op_type = "Gemm"
        return layer.node

    def _bias(self, layer: Layer, node: ir.Node, index: int, grid: Grid) -> Grid:
        """Round a constant bias and return the weight's grid that it needs."""
        old = node.inputs[index]
        array = edit.const_array(old)
        if array is None or old is None:
            return grid
        values, scale, wide = _grid.bias(array.reshape(-1), self._steps[layer.x], grid)
        axis = 0 if wide.axis is not None else None
        held = Grid(scale, np.zeros(scale.shape, np.int32), axis)
        node.replace_input_with(index, self._store(str(old.name), values, held))
        edit.discard(old)
        return wide

    def _store(self, stem: str, values: NDArray[np.generic], grid: Grid) -> ir.Value:
        """Add integers and a DequantizeLinear behind them at the front of the graph."""
        parts = [
            self._editor.constant(f"{stem}_int", values),
            self._editor.constant(f"{stem}_scale", grid.scale),
            self._editor.constant(f"{stem}_zero", grid.zero),
        ]
        axis = {} if grid.axis is None else {"axis": grid.axis}
        node = self._editor.node("DequantizeLinear", parts, axis, name=f"{stem}_dq")
        node.outputs[0].shape, node.outputs[0].dtype = ir.Shape(values.shape), ir.DataType.FLOAT
        edit.insert_first(self._editor.graph, node)
        return node.outputs[0]

    def _beside(
        self,
        layer: Layer,
        rows: NDArray[np.float32],
        split: tuple[int, ...],
        last: ir.Node,
    ) -> None:
        """Add the float product of a few channels to what the layer makes."""
        index = self._editor.constant(f"{layer.x.name}_far", np.asarray(split, np.int64))
        held = self._editor.constant(
            f"{layer.weight.name}_far", np.ascontiguousarray(rows if layer.axis == 1 else rows.T)
        )
        result = last.outputs[0]
        stem = str(result.name)
        far = self._editor.node("Gather", [layer.x, index], {"axis": -1}, name=f"{stem}_take")
        part = self._editor.node("MatMul", [far.outputs[0], held], name=f"{stem}_far")
        uses = tuple(result.uses())
        total = self._editor.node("Add", [result, part.outputs[0]], name=f"{stem}_sum")
        total.outputs[0].shape, total.outputs[0].type = result.shape, result.type
        edit.insert_after(last, far, part, total)
        for node, at in uses:
            node.replace_input_with(at, total.outputs[0])
        if result.is_graph_output():
            take_output(self._editor, result, total.outputs[0])


def take_output(editor: edit.Editor, value: ir.Value, instead: ir.Value) -> None:
    """Make `instead` the main graph's output in a value's place, under the name it had."""
    name, outputs = str(value.name), editor.graph.outputs
    for index, output in enumerate(outputs):
        if output is value:
            outputs[index] = instead
    value.name = editor.fresh(f"{name}_float")
    instead.name = name
