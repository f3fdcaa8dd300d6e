"""Channels of neighbouring layers scaled so that both weights spread alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.plugins.bounds import Bounds
from ortune.core.roles import Role
from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit


@dataclass(frozen=True)
class CrossLayerEqualization(Transform):
    """Makes weights fit for one step a tensor, after Nagel et al., 2019, section 4.1.

    Between two layers a channel may be divided by s > 0 in the first and multiplied in the second,
    as ``f(x / s) = f(x) / s`` for Relu, LeakyRelu and pooling. With ranges r1 of the
    first weight's output channel and r2 of the second's input channel, ``s = sqrt(r1 / r2)`` makes
    both ``sqrt(r1 r2)``. Chains are gone over until nothing moves. Convolutions, depthwise too,
    Gemm and MatMul; exact but for the rounding of the weights, and needs no data.

    A Clip ends a chain: its bound would have to be another one for every channel, which ONNX's
    Clip has not, and a Min beside Relu would keep integer kernels from taking it in. A value that
    is read twice ends it too. BatchNormalization does: put fuse-batch-norm first.

    Worth it before int8-static(per_channel=false). With one step a channel only the activations
    change, for better or worse.

    Attributes:
        sweeps: Times that every pair is looked at, at most.
        most: Largest factor; it keeps the biases of nearly dead channels small.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    role: ClassVar[Role] = Role.EQUALIZES

    sweeps: Annotated[int, Bounds(high=1000)] = 20
    most: float = 100.0

    def __post_init__(self) -> None:
        if self.sweeps < 1 or self.most <= 1:
            raise BadSettings(
                f"sweeps={self.sweeps}, most={self.most} changes nothing",
                fix="use sweeps >= 1 and most > 1",
            )

    def applies(self, facts: Facts) -> bool:
        return sum(facts.ops.get(op, 0) for op in ("Conv", "Gemm", "MatMul")) > 1

    def apply(self, model: ir.Model) -> int:
        editor = edit.Editor(model.graph)
        layers: dict[ir.Node, ScalableLayer] = {}
        pairs: list[tuple[ScalableLayer, ScalableLayer]] = []
        for node in [n for graph in (model.graph, *model.graph.subgraphs()) for n in graph]:
            first = _read_layer(node, layers)
            second = _find_next_layer(first, layers) if first is not None else None
            if first is None or second is None:
                continue
            if second.inputs % len(first.output_channel_ranges()) == 0:
                pairs.append((first, second))
        total = {pair: np.ones(len(pair[0].output_channel_ranges())) for pair in pairs}
        for _ in range(self.sweeps):
            moved = 0.0
            for pair in pairs:
                step = self._scale_pair(*pair, total[pair])
                total[pair] *= step
                moved = max(moved, float(np.abs(np.log(step)).max()))
            if moved < 1e-3:
                break
        changed = {layer for pair in pairs if np.any(total[pair] != 1) for layer in pair}
        for layer in changed:
            layer.store(editor)
        return sum(1 for pair in pairs if np.any(total[pair] != 1))

    def _scale_pair(
        self, first: ScalableLayer, second: ScalableLayer, total: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Scale one pair and return by how much, all steps of it together within `most`."""
        output_ranges = first.output_channel_ranges()
        input_ranges = second.input_channel_ranges(len(total))
        usable = (output_ranges > 0) & (input_ranges > 0)
        same = np.ones(len(output_ranges))
        ideal = np.sqrt(np.divide(output_ranges, input_ranges, out=same, where=usable))
        factor = np.clip(ideal * total, 1 / self.most, self.most) / total
        first.divide_outputs(factor)
        second.multiply_inputs(factor)
        return factor


class ScalableLayer:
    """A layer's weight and bias in float64 while they are being scaled.

    The weight is seen as [groups, outputs, inputs, kernel positions] of a group each.
    """

    def __init__(self, node: ir.Node, weight: NDArray[np.float64]) -> None:
        self.node = node
        self._across = node.op_type == "MatMul" or (
            node.op_type == "Gemm" and not edit.read_attribute(node, "transB", 0)
        )
        self._shape = weight.T.shape if self._across else weight.shape
        groups = edit.read_attribute(node, "group", 1) if node.op_type == "Conv" else 1
        outputs, inputs = self._shape[:2]
        flat = weight.T if self._across else weight
        self._weight = flat.reshape(
            groups, outputs // groups, inputs, math.prod(self._shape[2:])
        ).copy()
        self.place: tuple[ir.Node, int] = (node, 2)
        self.bias = np.zeros(0)

    def output_channel_ranges(self) -> NDArray[np.float64]:
        """Return the largest weight of every output channel."""
        return np.asarray(np.abs(self._weight).max(axis=(2, 3), initial=0).reshape(-1))

    def input_channel_ranges(self, channels: int) -> NDArray[np.float64]:
        """Return the largest weight of every input channel; several columns may be of one."""
        top = np.abs(self._weight).max(axis=(1, 3), initial=0)
        return np.asarray(top.reshape(channels, -1).max(axis=1))

    @property
    def inputs(self) -> int:
        """Columns, over all groups."""
        return self._weight.shape[0] * self._weight.shape[2]

    def divide_outputs(self, factor: NDArray[np.float64]) -> None:
        """Divide the output channels."""
        self._weight /= factor.reshape(len(self._weight), -1, 1, 1)
        if self.bias.size:
            self.bias = self.bias / factor

    def multiply_inputs(self, factor: NDArray[np.float64]) -> None:
        """Multiply the input channels."""
        columns = np.repeat(factor, self.inputs // len(factor))
        self._weight *= columns.reshape(len(self._weight), 1, -1, 1)

    def store(self, editor: edit.Editor) -> None:
        """Write weight and bias as float32 constants of the layer's own."""
        flat = self._weight.reshape(self._shape)
        weight = np.ascontiguousarray(flat.T if self._across else flat)
        self._replace_input(editor, (self.node, 1), weight)
        if self.bias.size:
            self._replace_input(editor, self.place, self.bias)

    @staticmethod
    def _replace_input(
        editor: edit.Editor, place: tuple[ir.Node, int], array: NDArray[np.float64]
    ) -> None:
        node, index = place
        old = node.inputs[index]
        assert old is not None
        value = editor.add_constant(f"{old.name}_equal", array.astype(np.float32))
        node.replace_input_with(index, value)
        edit.discard_constant(old)


def _read_layer(node: ir.Node, layers: dict[ir.Node, ScalableLayer]) -> ScalableLayer | None:
    if node in layers or node.domain or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return layers.get(node)
    weight = _read_float_constant(node, 1)
    if weight is None or (node.op_type != "Conv" and weight.ndim != 2) or weight.ndim < 2:
        return None
    if edit.read_attribute(node, "transA", 0) or node.inputs[0] is node.inputs[1]:
        return None
    layer = ScalableLayer(node, weight)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = _read_bias(node, 2, layer)
        if bias is None:
            return None
        layer.bias = bias
    layers[node] = layer
    return layer


def _find_next_layer(
    first: ScalableLayer, layers: dict[ir.Node, ScalableLayer]
) -> ScalableLayer | None:
    """Follow a layer's output through what commutes with positive factors a channel."""
    node, last = first.node, first.node.op_type != "Conv"
    while (reader := _only_reader(node)) is not None:
        value = node.outputs[0]
        if reader.op_type in ("Conv", "Gemm", "MatMul"):
            alike = (reader.op_type != "Conv") == last
            return _read_layer(reader, layers) if alike and reader.inputs[0] is value else None
        flattens = reader.op_type == "Flatten" and edit.read_attribute(reader, "axis", 1) == 1
        if flattens and not last:
            last = True
        elif reader.op_type == "Add" and last and node is first.node and not first.bias.size:
            index = 1 if reader.inputs[0] is value else 0
            bias = _read_bias(reader, index, first)
            if bias is None:
                return None
            first.bias, first.place = bias, (reader, index)
        elif not _commutes_with_scale(reader, last=last):
            return None
        node = reader
    return None


def _commutes_with_scale(node: ir.Node, *, last: bool) -> bool:
    """Say whether ``f(s x) = s f(x)`` for a positive s a channel, on whichever axis it lies."""
    spatial = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    return node.op_type in ("Relu", "LeakyRelu", "Identity") or (
        not last and node.op_type in spatial and len(node.outputs) == 1
    )


def _only_reader(node: ir.Node) -> ir.Node | None:
    reader = edit.only_reader(node.outputs[0])
    return reader if reader and not reader.domain and reader.graph is node.graph else None


def _read_bias(node: ir.Node, index: int, layer: ScalableLayer) -> NDArray[np.float64] | None:
    """Return a constant with one number for each output of a layer, or one for all."""
    bias = _read_float_constant(node, index)
    channels = len(layer.output_channel_ranges())
    if bias is None or bias.ndim > 1 or bias.size not in (1, channels):
        return None
    return np.broadcast_to(bias, (channels,)).copy()


def _read_float_constant(node: ir.Node, index: int) -> NDArray[np.float64] | None:
    """Read a float32 constant of the node's own or shared; what changes is a copy."""
    value = node.inputs[index]
    tensor = edit.const_tensor(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or edit.is_overridable(value):
        return None
    array = edit.const_array(value)
    return None if array is None else array.astype(np.float64)
