"""Writes quantize / dequantize pairs into a graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model import edit
from ortune.quantizers import _grid
from ortune.quantizers._grid import Grid
from ortune.quantizers._layers import Layer, discard_weight
from ortune.quantizers._placement import Placement
from ortune.quantizers._smooth import Smoothing


class Pairs:
    """Puts pairs into one graph; equal weights and equal grids are stored once.

    Args:
        graph: The main graph.
        grids: Tensor -> its grid.
        smooth: Activation -> what is done to it first.
    """

    def __init__(
        self,
        graph: ir.Graph,
        grids: Mapping[ir.Value, Grid],
        smooth: Mapping[ir.Value, Smoothing],
    ) -> None:
        self._graph = graph
        self._grids = grids
        self._smooth = smooth
        self._editor = edit.Editor(graph)
        self._weights: dict[
            tuple[ir.Value, int | None, ir.Value | None], tuple[ir.Value, Grid]
        ] = {}
        self._steps: dict[ir.Node, NDArray[np.float32]] = {}

    def around_tensors(self, placement: Placement) -> None:
        """Put a pair behind every chosen tensor and turn its readers to the rounded values."""
        readers = {layer.node for layer in placement.layers} | placement.followers
        shared: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        for layer in placement.layers:
            self._steps[layer.node] = self._grids[layer.x].scale
        for value, source in placement.tensors.items():
            if source not in shared:
                grid = self._grids[value]
                shared[source] = (
                    self._editor.constant(f"{source.name}_scale", grid.scale),
                    self._editor.constant(f"{source.name}_zero", grid.zero),
                )
            seen = self._guard(value) if value in placement.guarded else value
            if value in self._smooth and (factor := self._smooth[value].factor) is not None:
                seen = self._divide(value, factor)
            self._pair(
                value, seen, *shared[source], readers, all_readers=value in placement.replaced
            )

    def _guard(self, value: ir.Value) -> ir.Value:
        """Put a Sum of one in front of a pair: it keeps the float layer before it in float.

        Between a DequantizeLinear and a QuantizeLinear onnxruntime quantizes the weights of a
        layer itself, coarsely (``weight_bias_quantization.cc``).
        """
        made = self._editor.node("Sum", [value], name=f"{value.name}_float")
        made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
        producer = value.producer()
        assert producer is not None
        edit.insert_after(producer, made)
        return made.outputs[0]

    def _divide(self, value: ir.Value, factor: NDArray[np.float32]) -> ir.Value:
        """Divide an activation's channels, in front of its pair."""
        held = self._editor.constant(f"{value.name}_factor", (1 / factor).astype(np.float32))
        made = self._editor.node("Mul", [value, held], name=f"{value.name}_smooth")
        made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
        producer = value.producer()
        if producer is None:
            edit.insert_first(self._graph, made)
        else:
            edit.insert_after(producer, made)
        return made.outputs[0]

    def _pair(
        self,
        value: ir.Value,
        seen: ir.Value,
        scale: ir.Value,
        zero: ir.Value,
        readers: set[ir.Node],
        *,
        all_readers: bool,
    ) -> None:
        uses = [u for u in value.uses() if all_readers or u.node in readers]
        uses = [u for u in uses if u.node is not seen.producer()]
        q = self._editor.node("QuantizeLinear", [seen, scale, zero], name=f"{value.name}_q")
        d = self._editor.node(
            "DequantizeLinear", [q.outputs[0], scale, zero], name=f"{value.name}_dq"
        )
        rounded = d.outputs[0]
        q.outputs[0].shape, q.outputs[0].dtype = value.shape, zero.dtype or ir.DataType.UINT8
        rounded.shape, rounded.dtype = value.shape, ir.DataType.FLOAT
        producer = seen.producer()
        if producer is None:
            edit.insert_first(self._graph, q, d)
        else:
            edit.insert_after(producer, q, d)
        for node, index in uses:
            node.replace_input_with(index, rounded)
        if all_readers and value.is_graph_output():
            self._take_output(value, rounded)

    def _take_output(self, value: ir.Value, rounded: ir.Value) -> None:
        """Make the rounded values the graph's output, under the name it had."""
        name = str(value.name)
        for index, output in enumerate(self._graph.outputs):
            if output is value:
                self._graph.outputs[index] = rounded
        value.name = self._editor.fresh(f"{name}_float")
        rounded.name = name

    def of_weight(self, layer: Layer, *, per_channel: bool, reduce_range: bool) -> None:
        """Store a layer's weight and bias as integers behind DequantizeLinear."""
        axis = layer.axis if per_channel and (len(layer.shape) == 2 or layer.convolves) else None
        smooth = self._smooth.get(layer.x)
        key = (layer.weight, axis, None if smooth is None else layer.x)
        if key not in self._weights:
            array = layer.array()
            if smooth is not None:
                array = smooth.scaled(layer, array)
            grid = _grid.weight_grid(array, axis, reduce_range=reduce_range)
            wide = self._bias(layer, grid)
            value = self._stored(str(layer.weight.name), wide.quantize(array), wide)
            self._weights[key] = (value, wide)
        else:
            value, grid = self._weights[key]
            self._bias(layer, grid)
        last = self._added(layer, grid) if layer.op == "MatMul" else layer.node
        if smooth is not None and smooth.split:
            self._beside(layer, smooth.split, last)
        layer.node.replace_input_with(1, value)
        discard_weight(layer.weight)

    def _bias(self, layer: Layer, grid: Grid) -> Grid:
        """Round the layer's bias and return the weight's grid that it needs."""
        return grid if layer.bias is None else self._rounded_bias(layer, layer.node, 2, grid)

    def _added(self, layer: Layer, grid: Grid) -> ir.Node:
        """Round the bias added behind a MatMul where onnxruntime joins the two to one Gemm.

        It does so for matrices and for tensors of fixed shape; a Gemm with a float bias would
        stay in float.

        Returns:
            The last node of the layer: the Add, or the MatMul when no bias follows it.
        """
        shape, uses = layer.x.shape, tuple(layer.node.outputs[0].uses())
        if len(uses) != 1 or uses[0].node.op_type != "Add":
            return layer.node
        array = edit.const_array(uses[0].node.inputs[1 - uses[0].idx])
        if array is None or array.shape != (layer.shape[-1],):
            return layer.node
        if shape is not None and (len(shape) == 2 or shape.is_static()):
            self._rounded_bias(layer, uses[0].node, 1 - uses[0].idx, grid)
        return uses[0].node

    def _beside(self, layer: Layer, split: tuple[int, ...], last: ir.Node) -> None:
        """Add the float product of a few channels to what the layer makes."""
        index = self._editor.constant(f"{layer.x.name}_far", np.asarray(split, np.int64))
        rows = np.take(layer.array(), split, axis=1 - layer.axis)
        held = self._editor.constant(
            f"{layer.weight.name}_far", np.ascontiguousarray(rows if layer.axis == 1 else rows.T)
        )
        name = str(layer.node.name)
        far = self._editor.node("Gather", [layer.x, index], {"axis": -1}, name=f"{name}_take")
        part = self._editor.node("MatMul", [far.outputs[0], held], name=f"{name}_far")
        result = last.outputs[0]
        uses = tuple(result.uses())
        total = self._editor.node("Add", [result, part.outputs[0]], name=f"{name}_sum")
        total.outputs[0].shape, total.outputs[0].type = result.shape, result.type
        edit.insert_after(last, far, part, total)
        for node, at in uses:
            node.replace_input_with(at, total.outputs[0])
        if result.is_graph_output():
            self._take_output(result, total.outputs[0])

    def _rounded_bias(self, layer: Layer, node: ir.Node, index: int, grid: Grid) -> Grid:
        old = node.inputs[index]
        array = edit.const_array(old)
        if array is None or old is None:
            return grid
        step = self._steps[layer.node] * np.float32(edit.attribute(layer.node, "alpha", 1.0))
        values, scale, wide = _grid.bias(array.reshape(-1), step, grid)
        axis = 0 if wide.axis is not None else None
        held = Grid(scale, np.zeros(scale.shape, np.int32), axis)
        node.replace_input_with(index, self._stored(str(old.name), values, held))
        edit.discard(old)
        return wide

    def _stored(self, stem: str, values: NDArray[np.generic], grid: Grid) -> ir.Value:
        """Add integers and a DequantizeLinear behind them at the front of the graph."""
        parts = [
            self._editor.constant(f"{stem}_int", values),
            self._editor.constant(f"{stem}_scale", grid.scale),
            self._editor.constant(f"{stem}_zero", grid.zero),
        ]
        axis = {} if grid.axis is None else {"axis": grid.axis}
        node = self._editor.node("DequantizeLinear", parts, axis, name=f"{stem}_dq")
        node.outputs[0].shape, node.outputs[0].dtype = ir.Shape(values.shape), ir.DataType.FLOAT
        edit.insert_first(self._graph, node)
        return node.outputs[0]
