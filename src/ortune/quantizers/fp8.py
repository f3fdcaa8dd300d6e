"""float8 weights and activations, as Q/DQ pairs for GPUs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Observer, Probe, Range, Ranges
from ortune.core.plugins import catalog
from ortune.core.step import Quantizer
from ortune.graph.ir import edit
from ortune.quantizers.common import layers, nodes

_OBSERVER = catalog.load_plugin(Observer, "min-max")()

LARGEST = 448.0
"""Of float8e4m3fn; it has no infinity, and what is beyond becomes NaN unless clipped."""

SMALLEST_STEP = 1e-12
"""A step below this would make products of steps vanish in float32."""

MAX_KERNEL = 32
"""TensorRT's float8 convolutions take windows of fewer positions."""


@dataclass(frozen=True)
class Fp8(Quantizer):
    """Store weights and activations in float8 (e4m3fn), for GPUs from Ada and Hopper on.

    The arithmetic is TensorRT's: ``q = cast(clip(x / s, -448, 448))``, ``x = q s``, no zero point,
    ``s`` the largest magnitude over 448: one a tensor for activations, one an output channel for
    weights, which are stored in float8 behind a DequantizeLinear. Biases and all other operators
    stay float32. Like ModelOpt it leaves out layers that float8 kernels do not take or not run
    faster: sides of fewer than `min_side` (convolutions: as many or fewer), windows of 32
    positions or more, depthwise convolutions. onnxruntime's CPU provider runs the file
    at its optimization level basic; above, its integer rewrites refuse float8. With 4 bits of
    precision a layer has about 30 dB, whatever the range.

    Attributes:
        observer: How activation ranges are read off the calibration data.
        per_channel: One weight step an output channel instead of one a tensor.
        ops: Layers to quantize: Conv, MatMul, Gemm.
        include: Node names to look at; * and ? match, re: begins a regular expression. Empty
            looks at all.
        exclude: Node names to leave in float.
        min_side: Layers with fewer rows, columns or channels stay in float.
    """

    needs_opset: ClassVar[int] = 19

    observer: Observer = _OBSERVER
    per_channel: bool = True
    ops: tuple[str, ...] = ("Conv", "MatMul", "Gemm")
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_side: int = 16

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        if "fp8" in backend.arithmetic and not facts.quantized and facts.has_float_layers:
            yield cls()

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the activations of the layers, after inlining local functions."""
        layers.flatten_model(model)
        names = dict.fromkeys(str(layer.x.name) for layer in self._find_layers(model))
        return [Probe(name, self.observer) for name in names]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Write the pairs and return how many layers became float8."""
        layers.flatten_model(model)
        layers.note_unbounded_weights(model, self.ops)
        candidates = list(self._find_layers(model))
        active = [layer for layer in candidates if _compute_step(ranges.get(str(layer.x.name)))]
        if not active:
            raise Refused(
                "no Conv, MatMul or Gemm with a constant weight is large enough for float8",
                fix="leave fp8 out, or lower min_side",
            )
        writer = _Writer(model, per_channel=self.per_channel)
        for layer in active:
            step = _compute_step(ranges[str(layer.x.name)])
            layer.node.replace_input_with(0, writer.quantize_activation(layer, np.float32(step)))
            layer.node.replace_input_with(1, writer.quantize_weight(layer))
        for layer in active:
            nodes.discard_upstream(layer.weight)
        if len(candidates) > len(active):
            unused = wording.format_count(len(candidates) - len(active), "layer")
            edit.add_note(model, f"{unused} only ever saw zeros: left alone")
        return len(active)

    def _find_layers(self, model: ir.Model) -> Iterator[layers.Layer]:
        among = nodes.select_nodes(model, self.include, self.exclude)
        for graph in (model.graph, *model.graph.subgraphs()):
            for layer in layers.find_layers(graph, self.ops):
                large = min(layer.shape[-2:]) >= self.min_side
                if layer.op == "Conv":
                    window = math.prod(layer.shape[2:])
                    large = min(layer.shape[:2]) > self.min_side and window < MAX_KERNEL
                if layer.node in among and large:
                    yield layer


class _Writer:
    """Adds the pairs; a tensor read by several layers gets one."""

    def __init__(self, model: ir.Model, *, per_channel: bool) -> None:
        self._editor = edit.Editor(model.graph)
        self._per_channel = per_channel
        self._pairs: dict[tuple[ir.Value, ir.Graph | None], ir.Value] = {}
        self._weights: dict[tuple[ir.Value, int | None], list[ir.Value]] = {}
        zero = np.zeros((), dtype=ml_dtypes.float8_e4m3fn)
        self._zero = self._editor.add_constant("float8_zero", zero)

    def quantize_activation(self, layer: layers.Layer, step: np.float32) -> ir.Value:
        key = (layer.x, layer.node.graph)
        if key not in self._pairs:
            name = str(layer.x.name)
            scale = self._editor.add_constant(f"{name}_scale", np.asarray(step))
            grid = [scale, self._zero]
            q = self._editor.make_node("QuantizeLinear", [layer.x, *grid], name=f"{name}_q")
            q.outputs[0].shape, q.outputs[0].dtype = layer.x.shape, ir.DataType.FLOAT8E4M3FN
            dq = nodes.make_dequantize(self._editor, name, [q.outputs[0], *grid])
            edit.insert_before(layer.node, q, dq)
            self._pairs[key] = dq.outputs[0]
        return self._pairs[key]

    def quantize_weight(self, layer: layers.Layer) -> ir.Value:
        axis = layer.axis if self._per_channel else None
        key, stem = (layer.weight, axis), str(layer.weight.name)
        if key not in self._weights:
            array = layer.read_weight()
            steps = compute_weight_steps(array, axis)
            values = to_float8(array, steps, layer.axis)
            self._weights[key] = nodes.add_constants(
                self._editor, stem, float8=values, scale=steps
            )
        dq = nodes.make_dequantize(self._editor, stem, self._weights[key], axis)
        edit.insert_before(layer.node, dq)
        return dq.outputs[0]


def compute_weight_steps(array: NDArray[Any], axis: int | None) -> NDArray[np.float32]:
    """Return the largest magnitude over 448, of each slice along `axis` or of all."""
    other_axes = None if axis is None else tuple(i for i in range(array.ndim) if i != axis)
    top = np.maximum(array.max(axis=other_axes), -array.min(axis=other_axes))
    return np.asarray(np.maximum(top / LARGEST, SMALLEST_STEP), np.float32)


def to_float8(array: NDArray[Any], steps: NDArray[np.float32], axis: int) -> NDArray[Any]:
    """Round to the nearest float8, ties to even, as QuantizeLinear does."""
    if steps.ndim:
        shape = [1] * array.ndim
        shape[axis] = -1
        steps = steps.reshape(shape)
    return np.clip(array / steps, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)


def _compute_step(seen: Range | None) -> float:
    """Return the step that covers a range, 0 where nothing but zero was seen."""
    top = 0.0 if seen is None else max(abs(seen.low), abs(seen.high))
    return max(top / LARGEST, SMALLEST_STEP) if top else 0.0
