"""Which weights the integer step of a recipe will round, and onto which grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadSettings
from ortune.core.roles import make_static_int8
from ortune.core.step import Quantizer
from ortune.graph.ir import edit
from ortune.quantizers.common import grid as grids
from ortune.quantizers.common.layers import Layer, refuse_without_layers, resolve_transpose
from ortune.quantizers.common.rounding.matrices import Columns


@dataclass(frozen=True)
class Preparation(Quantizer):
    """A step that edits float weights for the integer step that follows.

    Attributes:
        before: The step that follows, with its settings; int8-static by default.
    """

    needs_opset: ClassVar[int] = 13

    before: Quantizer | None = None


@runtime_checkable
class RoundingTarget(Protocol):
    """A step that rounds weights onto symmetric grids of the largest value."""

    @property
    def per_channel(self) -> bool:
        """One weight step an output channel instead of one a tensor."""
        ...

    @property
    def reduce_range(self) -> bool:
        """Weights in 7 bits."""
        ...

    def select_layers(self, model: ir.Model) -> Sequence[Layer]:
        """Return the layers whose weights it rounds, after its own exact rewrites in place."""
        ...


@dataclass(frozen=True)
class Rounding:
    """One weight, the layers that read it, and the grid it will be stored on."""

    layers: tuple[Layer, ...]  # at least one; all read the same constant
    columns: Columns  # how the weight lies in memory
    per_channel: bool
    reduce_range: bool

    @property
    def largest(self) -> int:
        """The integer that the largest value of a grid is stored as."""
        return 63 if self.reduce_range else 127

    def make_grid(self, array: NDArray[Any]) -> grids.Grid:
        """Return the grid that the integer step finds for a weight."""
        axis = self.layers[0].axis if self.per_channel else None
        return grids.make_weight_grid(array, axis, reduce_range=self.reduce_range)

    def compute_steps(self, array: NDArray[Any]) -> NDArray[np.float32]:
        """Return the steps of `make_grid` beside the matrices of `columns`."""
        scale = self.make_grid(array).scale
        groups, channels, _ = self.columns.shape
        return np.broadcast_to(scale.reshape(-1), groups * channels).reshape(groups, channels, 1)


def list_roundings(model: ir.Model, before: Quantizer | None) -> list[Rounding]:
    """Return the weights that a step will round, each once, in the graph's order.

    Args:
        model: Gets the step's exact rewrites in place.
        before: The integer step; int8-static with its defaults when None.

    Raises:
        BadSettings: The step is none that rounds weights onto such grids as they are.
        Refused: It will take no layer with a matrix for a weight.
    """
    step = before or make_static_int8()
    if not isinstance(step, RoundingTarget):
        raise BadSettings(
            f"{step.name()} does not set weight scales from the largest value",
            fix="give the step that follows, such as before=int8-static(per_channel=false)",
        )
    if getattr(step, "smooth", 0) or getattr(step, "split", 0):
        raise BadSettings(
            f"{step} changes the weights before it rounds them",
            fix="put smooth-quant first and leave smooth and split out of int8-static",
        )
    readers: dict[ir.Value, list[Layer]] = {}
    for layer in step.select_layers(model):
        if len(layer.shape) == 2 or layer.op == "Conv":
            readers.setdefault(layer.weight, []).append(layer)
    alone = {weight: layers for weight, layers in readers.items() if _is_unshared(weight, layers)}
    if not alone:
        refuse_without_layers(
            model,
            f"{step.name()} will round no weight of a Conv, MatMul or Gemm that is theirs alone",
        )
    if len(alone) < len(readers):
        edit.add_note(
            model,
            "left alone, as others read them too: "
            f"{wording.format_count(len(readers) - len(alone), 'weight')}",
        )
    return [
        Rounding(tuple(layers), Columns.from_layer(layers[0]), step.per_channel, step.reduce_range)
        for layers in alone.values()
    ]


def _is_unshared(weight: ir.Value, layers: Sequence[Layer]) -> bool:
    """Say whether nothing else reads a constant, so that it is stored once after as before."""
    source, _ = resolve_transpose(weight)
    nodes = {layer.node for layer in layers}
    inside = {weight.producer()} if source is not weight else nodes
    alike = {(layer.axis, Columns.from_layer(layer)) for layer in layers}
    return (
        len(alike) == 1
        and not source.is_graph_output()
        and {node for node, _ in source.uses()} <= inside
        and {node for node, _ in weight.uses()} <= nodes
    )
