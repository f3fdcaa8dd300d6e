"""Weights as matrices, and the moments of what they are multiplied with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.observer import Moments, Observer, Probe, Range, Ranges
from ortune.core.plugins import catalog
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common.grid import Grid
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.nodes import discard_upstream


@dataclass(frozen=True)
class Columns:
    """A weight as one matrix a group: an output channel is a row."""

    shape: tuple[int, int, int]  # groups, output channels a group, columns
    weight_shape: tuple[int, ...]  # the shape that the layer reads
    across: bool  # the rows lie along the last axis of two, as in ``x @ W``

    @classmethod
    def from_layer(cls, layer: Layer) -> Columns:
        """Describe the weight of a Conv, or of a MatMul or Gemm of two axes."""
        shape = layer.shape
        if layer.op == "Conv":
            groups = edit.read_attribute(layer.node, "group", 1)
            return cls((groups, shape[0] // groups, math.prod(shape[1:])), shape, across=False)
        rows, width = shape[layer.axis], shape[1 - layer.axis]
        return cls((1, rows, width), shape, across=layer.axis == 1)

    def split_matrices(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the matrices, shape [groups, channels, columns]; a view where that can be."""
        return (array.T if self.across else array).reshape(self.shape)

    def join_matrices(self, matrices: NDArray[Any]) -> NDArray[np.float32]:
        """Undo `split_matrices`, in float32."""
        flat = matrices.astype(np.float32)
        if self.across:
            return np.ascontiguousarray(flat.reshape(self.weight_shape[::-1]).T)
        return flat.reshape(self.weight_shape)


def list_moment_probes(layers: Iterable[Layer], *, products: bool = True) -> list[Probe]:
    """Return probes for moments, or means without `products`, of the layers' inputs, each once."""
    pairs = ((layer, _make_observer(layer, products)) for layer in layers)
    return list(
        dict.fromkeys(
            Probe(str(layer.x.name), kind, _make_key(layer, kind)) for layer, kind in pairs
        )
    )


def read_moments(layer: Layer, ranges: Ranges, *, products: bool = True) -> Moments | None:
    """Return what was observed of a layer's input; None when that is nothing of use."""
    seen = ranges.get(_make_key(layer, _make_observer(layer, products)))
    result = None if seen is None else seen.moments
    groups, _, width = Columns.from_layer(layer).shape
    if result is None or not result.count or result.mean.shape != (groups, width):
        return None
    return result if np.isfinite(result.mean).all() else None


def read_input_range(layer: Layer, ranges: Ranges) -> Range | None:
    """Return the whole range of a layer's input, of what `list_moment_probes` asked for."""
    return ranges.get(_make_key(layer, _make_observer(layer, products=True)))


def _make_observer(layer: Layer, products: bool) -> Observer:
    kind = catalog.load_plugin(Observer, "moments")
    fields: dict[str, Any] = {"products": products}
    if layer.op == "Conv":
        fields["kernel"] = layer.shape[2:]
        fields["groups"] = edit.read_attribute(layer.node, "group", 1)
        fields["auto_pad"] = edit.read_attribute(layer.node, "auto_pad", "NOTSET")
        for name in ("strides", "pads", "dilations"):
            fields[name] = tuple(edit.read_attribute(layer.node, name, ()))
    return kind(**fields)


def _make_key(layer: Layer, observer: Observer) -> str:
    return f"{layer.x.name}|{observer}"


def put_weight(editor: edit.Editor, layers: Sequence[Layer], array: NDArray[np.float32]) -> None:
    """Give the layers another weight."""
    old = layers[0].weight
    value = editor.add_constant(f"{old.name}_fit", array)
    for layer in layers:
        layer.node.replace_input_with(1, value)
    discard_upstream(old)


def find_bias(layer: Layer) -> tuple[ir.Node, int] | None:
    """Return the node and the input that hold, or may hold, a layer's constant bias.

    A MatMul has one only in an Add behind it that nothing else comes before.
    """
    node = layer.node
    if layer.op != "MatMul":
        constant = layer.bias is None or edit.const_tensor(layer.bias) is not None
        return (node, 2) if constant and edit.read_attribute(node, "beta", 1.0) == 1.0 else None
    uses = tuple(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    add, index = uses[0].node, 1 - uses[0].idx
    if add.op_type != "Add" or add.domain or add.graph is not node.graph:
        return None
    tensor = edit.const_tensor(add.inputs[index])
    fits = tensor is not None and tensor.size in (1, layer.shape[layer.axis])
    return (add, index) if fits and tensor is not None and len(tensor.shape) <= 1 else None


def shift_bias(
    editor: edit.Editor, layer: Layer, weight_change: NDArray[Any], mean: NDArray[np.float64]
) -> bool:
    """Let a layer's bias take up a change of its mean output; say whether it can have one.

    Args:
        weight_change: Old less new weight, shape [groups, channels, columns].
        mean: Of the input, shape [groups, columns].
    """
    by = np.einsum("gcw,gw->gc", weight_change, mean).reshape(-1)
    place = find_bias(layer)
    if place is None:
        return False
    node, index = place
    old = qdq.find_input(node, index)
    bias = edit.const_array(old)
    factor = float(edit.read_attribute(layer.node, "alpha", 1.0)) if layer.op == "Gemm" else 1.0
    new = (0.0 if bias is None else bias.astype(np.float64)) + factor * by
    stem = str(layer.node.outputs[0].name if old is None else old.name)
    qdq.set_input(node, index, editor.add_constant(f"{stem}_shifted", np.asarray(new, np.float32)))
    edit.discard_constant(old)
    return True


_STEPS = 255


def find_worst_layers(
    layers: Sequence[Layer], ranges: Ranges, grid: Callable[[Layer], Grid], most: int
) -> list[Layer]:
    """Return the layers of the largest `compute_relative_error`, worst first, but never all of
    them.

    Args:
        layers: Products by a weight of two axes; others are passed over.
        grid: The grid that a layer's weight is stored on.
    """
    errors = [
        (error, -place)
        for place, layer in enumerate(layers)
        if (error := compute_relative_error(layer, ranges, grid(layer))) is not None
    ]
    chosen = sorted(errors, reverse=True)[: min(most, len(layers) - 1)]
    return [layers[-place] for _, place in chosen]


def compute_relative_error(layer: Layer, ranges: Ranges, grid: Grid) -> float | None:
    """Return the expected square of a layer's error over that of its output.

    Rounding an activation to 8 bits over its whole range adds ``step**2 / 12`` to every input,
    which the weight sums up; rounding the weight by D adds ``tr(D^T S D)``, S being the second
    moment of the input. One layer at a time, on the float model's activations: on GPT-2 it finds
    the worst two of 25 products as measuring each by itself does, but for the head.

    Returns:
        None where the input was not observed, or the output is zero.
    """
    seen, extent = read_moments(layer, ranges), read_input_range(layer, ranges)
    if seen is None or extent is None or not seen.second.size:
        return None
    columns, array = Columns.from_layer(layer), layer.read_weight()
    weight = columns.split_matrices(array)[0]
    rounding_error = columns.split_matrices(array - grid.dequantize(grid.quantize(array)))[0]
    second = seen.second[0].astype(np.float32)
    signal = float(np.sum((weight @ second) * weight, dtype=np.float64))
    if signal <= 0:
        return None
    step = (max(extent.high, 0.0) - min(extent.low, 0.0)) / _STEPS
    noise = step**2 / 12 * float(np.sum(np.square(weight), dtype=np.float64))
    return (
        noise + float(np.sum((rounding_error @ second) * rounding_error, dtype=np.float64))
    ) / signal
