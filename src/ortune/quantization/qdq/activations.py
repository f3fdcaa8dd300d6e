"""The grids of the activations of one graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import onnx_ir as ir

from ortune.core.observer import Ranges
from ortune.quantization import grid
from ortune.quantization.qdq.placement import Placement, after, float_inputs
from ortune.quantization.qdq.smooth import Smoothing


def grids(
    placement: Placement,
    ranges: Ranges,
    smooth: Mapping[ir.Value, Smoothing],
    wide: Collection[ir.Node],
    *,
    kind: Literal["u8", "s8"],
    symmetric: bool,
) -> dict[ir.Value, grid.Grid]:
    """Return the grid of every tensor that gets a pair.

    Args:
        placement: Of the graph.
        ranges: What calibration saw.
        smooth: What is done to activations first.
        wide: Nodes whose activations take 16 bits, with all tensors on the same grid.
        kind: Of the others.
        symmetric: Zero point in the middle.
    """
    touched = {value for node in wide for value in (*float_inputs(node), *node.outputs)}
    touched |= {after(node) for node in wide}
    sources = {placement.tensors[value] for value in touched if value in placement.tensors}
    sixteen: grid.Kind = "s16" if kind == "s8" else "u16"
    return {
        value: grid.activation(
            smooth[value].seen if value in smooth else ranges[str(source.name)],
            sixteen if source in sources else kind,
            symmetric=symmetric,
        )
        for value, source in placement.tensors.items()
    }
