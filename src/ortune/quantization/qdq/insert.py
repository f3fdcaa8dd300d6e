"""Writes quantize / dequantize pairs behind tensors.

Sixteen-bit pairs are standard operators from opset 21 on, and onnxruntime's own before. No kernel
of its CPU provider computes with them: between such pairs it computes in float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph import edit
from ortune.quantization.grid import Grid
from ortune.quantization.qdq.nodes import put_behind, take_output
from ortune.quantization.qdq.placement import Placement
from ortune.quantization.qdq.smooth import Smoothing

WIDE_OPSET = 21
"""From here on the standard pair knows 16 bits."""


class Pairs:
    """Puts pairs into one graph; a grid that several tensors share is stored once.

    Args:
        editor: Of the main graph.
        grids: Tensor -> its grid.
        smooth: Activation -> what is done to it first.
        opset: Of the model's standard operators.
    """

    def __init__(
        self,
        editor: edit.Editor,
        grids: Mapping[ir.Value, Grid],
        smooth: Mapping[ir.Value, Smoothing],
        opset: int,
    ) -> None:
        self._editor = editor
        self._grids = grids
        self._smooth = smooth
        self._opset = opset
        self.foreign = False

    def put(self, placement: Placement) -> None:
        """Put a pair behind every chosen tensor and turn its readers to the rounded values."""
        readers = {layer.node for layer in placement.layers} | placement.followers
        home = placement.graph
        shared: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        for value, source in placement.tensors.items():
            if source not in shared:
                grid = self._grids[value]
                shared[source] = (
                    self._editor.constant(f"{source.name}_scale", grid.scale),
                    self._editor.constant(f"{source.name}_zero", grid.zero),
                )
            seen = self._guard(value) if value in placement.guarded else value
            if value in self._smooth and (factor := self._smooth[value].factor) is not None:
                seen = self._divide(value, factor, home)
            whole = value in placement.replaced
            self._pair(value, seen, home, shared[source], readers, all_readers=whole)

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

    def _share(self, rounded: ir.Value, uses: Sequence[tuple[ir.Node, int]]) -> None:
        """Give several float readers one float tensor, through a Sum of one.

        onnxruntime repeats a DequantizeLinear for every reader: what reads it twice, such as GELU
        in primitive operators, would not be fused any more.
        """
        made = self._editor.node("Sum", [rounded], name=f"{rounded.name}_shared")
        made.outputs[0].shape, made.outputs[0].type = rounded.shape, rounded.type
        producer = rounded.producer()
        assert producer is not None
        edit.insert_after(producer, made)
        for node, index in uses:
            node.replace_input_with(index, made.outputs[0])

    def _divide(self, value: ir.Value, factor: NDArray[np.float32], home: ir.Graph) -> ir.Value:
        """Divide an activation's channels, in front of its pair."""
        held = self._editor.constant(f"{value.name}_factor", (1 / factor).astype(np.float32))
        made = self._editor.node("Mul", [value, held], name=f"{value.name}_smooth")
        made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
        put_behind(value, home, made)
        return made.outputs[0]

    def _pair(
        self,
        value: ir.Value,
        seen: ir.Value,
        home: ir.Graph,
        grid: tuple[ir.Value, ir.Value],
        readers: set[ir.Node],
        *,
        all_readers: bool,
    ) -> None:
        uses = [u for u in value.uses() if all_readers or u.node in readers]
        uses = [u for u in uses if u.node is not seen.producer()]
        stem, domain = str(value.name), self._domain(grid[1])
        q = self._editor.node("QuantizeLinear", [seen, *grid], name=f"{stem}_q", domain=domain)
        d = self._editor.node(
            "DequantizeLinear", [q.outputs[0], *grid], name=f"{stem}_dq", domain=domain
        )
        rounded = d.outputs[0]
        q.outputs[0].shape, q.outputs[0].dtype = value.shape, grid[1].dtype or ir.DataType.UINT8
        rounded.shape, rounded.dtype = value.shape, ir.DataType.FLOAT
        put_behind(seen, home, q, d)
        outside = [use for use in uses if use.node not in readers]
        if len(outside) > 1:
            self._share(rounded, outside)
            uses = [use for use in uses if use.node in readers]
        for node, index in uses:
            node.replace_input_with(index, rounded)
        if all_readers and value.is_graph_output():
            take_output(self._editor, home, value, rounded)

    def _domain(self, zero: ir.Value) -> str:
        wide = zero.dtype in (ir.DataType.UINT16, ir.DataType.INT16)
        self.foreign |= wide and self._opset < WIDE_OPSET
        return "com.microsoft" if wide and self._opset < WIDE_OPSET else ""
