"""Which weights the integer step of a recipe will round, as matrices, and their inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.observer import Moments, Observer, Probe, Ranges
from ortune.core.plugins import catalog, codec
from ortune.core.roles import Role, find_plugin, make_static_int8
from ortune.core.step import Quantizer, Step, Transform
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common import grid as grids
from ortune.quantizers.common.grid import Grid
from ortune.quantizers.common.layers import Layer, refuse_without_layers, resolve_transpose
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
    probes = (Probe(str(layer.x.name), kind, _make_key(layer, kind)) for layer, kind in pairs)
    return list(dict.fromkeys(probes))


def read_moments(layer: Layer, ranges: Ranges, *, products: bool = True) -> Moments | None:
    """Return what was observed of a layer's input; None when that is nothing of use."""
    seen = ranges.get(_make_key(layer, _make_observer(layer, products)))
    result = None if seen is None else seen.moments
    groups, _, width = Columns.from_layer(layer).shape
    if result is None or not result.count or result.mean.shape != (groups, width):
        return None
    return result if np.isfinite(result.mean).all() else None


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


def compute_relative_error(layer: Layer, ranges: Ranges, grid: Grid) -> float | None:
    """Return the expected square of a layer's error over that of its output, for 2-D weights.

    The grid is the one that the weight is stored on.

    Rounding an activation to 8 bits over its whole range adds ``step**2 / 12`` to every input,
    which the weight sums up; rounding the weight by D adds ``tr(D^T S D)``, S being the second
    moment of the input. One layer at a time, on the float model's activations: on GPT-2 it finds
    the worst two of 25 products as measuring each by itself does, but for the head.

    Returns:
        None where the input was not observed, or the output is zero.
    """
    seen = read_moments(layer, ranges)
    extent = ranges.get(_make_key(layer, _make_observer(layer, products=True)))
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
    noise += float(np.sum((rounding_error @ second) * rounding_error, dtype=np.float64))
    return noise / signal


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
        shared = wording.format_count(len(readers) - len(alone), "weight")
        edit.add_note(model, f"left alone, as others read them too: {shared}")
    return [
        Rounding(tuple(group), Columns.from_layer(group[0]), step.per_channel, step.reduce_range)
        for group in alone.values()
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


Kit: TypeAlias = Sequence[tuple[Role, ...]]


def count_products(facts: Facts) -> int:
    """Return how many matrix products a network has."""
    return facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0)


def prepend_kit(last: Quantizer, kit: Kit) -> Iterator[tuple[Step, ...]]:
    """Yield what of a kit is installed, each in front of the step that rounds the weights."""
    meant = vars(type(last)).get("role") is Role.STATIC and last == type(last)()
    for roles in kit:
        steps: list[Step] = []
        for role in roles:
            if role is Role.EQUALIZES:
                equalizer = find_plugin(Transform, role)
                steps += [] if equalizer is None else [equalizer()]
            elif (cls := find_plugin(Quantizer, role)) is not None:
                steps.append(codec.build_dataclass(cls, {} if meant else {"before": last}))
        if len(steps) == len(roles):
            yield (*steps, last)
