"""Writes quantize / dequantize pairs behind tensors.

Sixteen-bit pairs are standard operators from opset 21 on, and onnxruntime's own before. No kernel
of its CPU provider computes with them: between such pairs it computes in float.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortune.core.observer import Range, Ranges
from ortune.graph.ir import edit
from ortune.graph.ir.qdq import MICROSOFT
from ortune.quantizers.common.grid import Grid, Kind, make_activation_grid
from ortune.quantizers.common.nodes import (
    add_constants,
    add_unary_sum,
    make_dequantize,
    multiply_channels,
    put_behind,
    replace_output,
)
from ortune.quantizers.common.qdq.placement import (
    Placement,
    find_integer_output,
    float_inputs,
    is_absorbed,
)
from ortune.quantizers.common.qdq.smooth import Smoothing

WIDE_OPSET = 21
"""From here on the standard pair knows 16 bits."""


_ALONE = ("HardSigmoid",)
"""Beside one of these, which nothing fuses, a second DequantizeLinear is cheaper than the copy."""


class PairInserter:
    """Puts pairs into one graph; a grid that several tensors share is stored once.

    Attributes:
        foreign: Whether an operator of com.microsoft was written.
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

    def insert_pairs(self, placement: Placement) -> None:
        """Put a pair behind every chosen tensor and turn its readers to the rounded values."""
        readers = {layer.node for layer in placement.layers} | placement.followers
        home = placement.graph
        shared: dict[ir.Value, list[ir.Value]] = {}
        for value, source in placement.tensors.items():
            if source not in shared:
                grid = self._grids[value]
                stem = str(source.name)
                shared[source] = add_constants(
                    self._editor, stem, scale=grid.scale, zero=grid.zero
                )
            seen = value
            if value in placement.guarded:
                # It keeps the float layer before it in float: between a DequantizeLinear and a
                # QuantizeLinear onnxruntime quantizes the weights of a layer itself, coarsely
                # (weight_bias_quantization.cc).
                seen = add_unary_sum(self._editor, value, "float")
            if value in self._smooth and (factor := self._smooth[value].factor) is not None:
                seen = multiply_channels(
                    self._editor, value, (1 / factor).astype(np.float32), home
                )
            whole = value in placement.replaced
            self._insert_pair(value, seen, home, shared[source], readers, all_readers=whole)

    def _insert_pair(
        self,
        value: ir.Value,
        seen: ir.Value,
        home: ir.Graph,
        grid: Sequence[ir.Value],
        readers: set[ir.Node],
        *,
        all_readers: bool,
    ) -> None:
        uses = [u for u in value.uses() if all_readers or u.node in readers]
        uses = [u for u in uses if u.node is not seen.producer()]
        wide = grid[1].dtype in (ir.DataType.UINT16, ir.DataType.INT16)
        self.foreign |= wide and self._opset < WIDE_OPSET
        stem, domain = str(value.name), (MICROSOFT if wide and self._opset < WIDE_OPSET else "")
        q = self._editor.make_node(
            "QuantizeLinear", [seen, *grid], name=f"{stem}_q", domain=domain
        )
        q.outputs[0].shape, q.outputs[0].dtype = value.shape, grid[1].dtype or ir.DataType.UINT8
        d = make_dequantize(self._editor, stem, [q.outputs[0], *grid], domain=domain)
        rounded = d.outputs[0]
        put_behind(seen, home, q, d)
        outside = [use for use in uses if use.node not in readers]
        if len(outside) > (2 if any(n.op_type in _ALONE for n, _ in outside) else 1):
            # Float readers share one tensor: what onnxruntime fuses of them (Gelu) reads it twice,
            # and it dequantizes for each reader anew.
            shared = add_unary_sum(self._editor, rounded, "shared")
            for node, index in outside:
                node.replace_input_with(index, shared)
            uses = [use for use in uses if use.node in readers]
        for node, index in uses:
            node.replace_input_with(index, rounded)
        if all_readers and value.is_graph_output():
            replace_output(self._editor, home, value, rounded)


def make_activation_grids(
    placement: Placement,
    ranges: Ranges,
    smooth: Mapping[ir.Value, Smoothing],
    wide: Collection[ir.Node],
    *,
    kind: Literal["u8", "s8", "by-sign"],
    symmetric: bool,
    absorbs: bool = False,
) -> dict[ir.Value, Grid]:
    """Return the grid of every tensor of a graph that gets a pair.

    Activations of `wide` nodes take 16 bits, with all tensors on the same grid.

    Args:
        kind: ``by-sign`` is unsigned where nothing is negative, and signed elsewhere.
        absorbs: The grid behind a Relu or Clip begins at 0 in any case: a kernel absorbs no other.
    """

    def make_grid(seen: Range, wide: bool, absorbed: bool) -> Grid:
        signed = kind == "s8" or (kind == "by-sign" and seen.low < 0)
        chosen: Kind = ("s16" if signed else "u16") if wide else ("s8" if signed else "u8")
        centred = symmetric and not absorbed and (signed or kind != "by-sign")
        return make_activation_grid(seen, chosen, symmetric=centred)

    touched = {value for node in wide for value in (*float_inputs(node), *node.outputs)}
    touched |= {find_integer_output(node) for node in wide}
    sources = {placement.tensors[value] for value in touched if value in placement.tensors}
    return {
        value: make_grid(
            smooth[value].seen if value in smooth else ranges[str(source.name)],
            source in sources,
            absorbs and is_absorbed(source),
        )
        for value, source in placement.tensors.items()
    }
