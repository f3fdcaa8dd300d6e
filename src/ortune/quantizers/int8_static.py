"""Static int8: quantize / dequantize pairs with ranges from calibration data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core import catalog
from ortune.core.backend import Backend
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Observer, Probe, Ranges
from ortune.core.step import Quantizer
from ortune.model import edit
from ortune.quantizers import _grid
from ortune.quantizers._fold import fold
from ortune.quantizers._layers import Layer, excluded, layers
from ortune.quantizers._packed import Packer
from ortune.quantizers._pairs import Pairs
from ortune.quantizers._placement import Placement, moved, place
from ortune.quantizers._smooth import Smoothing, smoothable, smoothing
from ortune.quantizers._upsample import upsample

_OBSERVER = catalog.load(Observer, "min-max")()
_CHANNELS = catalog.load(Observer, "channels")()

MANY = 20
"""Convolutions of a network deep enough to leave the first few in float."""


@dataclass(frozen=True)
class Int8Static(Quantizer):
    """Eight-bit activations and weights, written as Q/DQ pairs that runtimes fuse.

    Attributes:
        observer: How activation ranges are read off the calibration data.
        per_channel: One weight step an output channel instead of one a tensor.
        activations: Unsigned is the fast pair with signed weights on x86; GPUs want s8.
        symmetric: Activation zero point in the middle; GPUs want it.
        reduce_range: Weights in 7 bits, for x86 without VNNI, where 8-bit sums saturate.
        ops: Layers to quantize: Conv, ConvTranspose, MatMul, Gemm.
        through: Operators between two layers that stay in integers.
        head: Quantize too the last matrix product of a convolutional network: it takes little
            time, and rounding it costs as much accuracy as all the rest.
        upsample: Write ConvTranspose as Conv and DepthToSpace, which have integer kernels in
            onnxruntime; OpenVINO has one for ConvTranspose itself (add it to `ops` there).
        keep_first: Convolutions to leave in float, counted from the input.
        exclude: Node names to leave in float; * and ? match.
        min_side: MatMul and Gemm with fewer rows or columns stay in float.
        smooth: Share of an activation's outlying channels that moves into the weights, 0 to 1;
            0.75 suits transformers. Ranges of matrix products are then the whole extent.
        split: Outlying channels, at most, that a float product beside the integer one takes over
            where a layer narrows (the last product of a transformer's MLP).
    """

    needs_opset: ClassVar[int] = 13

    observer: Observer = _OBSERVER
    per_channel: bool = True
    activations: Literal["u8", "s8"] = "u8"
    symmetric: bool = False
    reduce_range: bool = False
    ops: tuple[str, ...] = ("Conv", "MatMul", "Gemm")
    through: tuple[str, ...] = (
        "Add",
        "AveragePool",
        "Concat",
        "DepthToSpace",
        "Flatten",
        "GlobalAveragePool",
        "LeakyRelu",
        "MaxPool",
        "Mul",
        "Reshape",
        "Resize",
        "Sigmoid",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    )
    head: bool = False
    upsample: bool = True
    keep_first: int = 0
    exclude: tuple[str, ...] = ()
    min_side: int = 16
    smooth: float = 0.0
    split: int = 0

    @classmethod
    def offers(cls, facts: Facts, backend: Backend) -> Iterable[Self]:
        """Yield plain rounding, and what may help the kind of network.

        For transformers outliers are smoothed and split off; deep convolutional networks are
        also tried with clipped ranges and with the first convolutions in float.
        """
        if "int8" not in backend.arithmetic or facts.quantized:
            return
        base = cls()
        if "int8-weights" in backend.arithmetic and facts.has("ConvTranspose"):
            base = cls(ops=(*base.ops, "ConvTranspose"), upsample=False)
        products = facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0)
        if products > 1 and facts.has("Softmax", "LayerNormalization"):
            yield replace(base, smooth=0.75, split=4)
        if facts.has("Conv", "ConvTranspose") or products > 1:
            yield base
        if facts.ops.get("Conv", 0) >= MANY:
            yield replace(base, observer=catalog.load(Observer, "percentile")())
            yield replace(base, keep_first=3)

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the tensors that get a pair.

        First local functions are inlined, scales and biases behind convolutions folded into them,
        and transposed convolutions rewritten, all exactly.
        """
        self._prepare(model)
        placement = self._place(model, None)
        smooth = smoothable(placement) if self.smooth or self.split else {}
        return [
            Probe(str(value.name), _CHANNELS if value in smooth else self.observer)
            for value in placement.watched()
        ]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Put in the pairs and return how many layers became integer.

        Raises:
            Refused: No layer of `ops` has a constant float32 weight and a usable range.
            BadSettings: A pattern of `exclude` matches nothing.
        """
        self._prepare(model)
        placement = self._place(model, ranges)
        if not placement.layers:
            raise Refused(
                f"no {', '.join(self.ops)} with a constant float32 weight to quantize",
                fix="see `ortune inspect` for the model's operators and dtypes",
            )
        self._note(model, placement)
        factors = self._factors(placement, ranges)
        grids = self._grids(placement, ranges, factors)
        editor = edit.Editor(model.graph)
        Pairs(editor, grids, factors).put(placement)
        packer = Packer(
            editor,
            {value: grid.scale for value, grid in grids.items()},
            factors,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
        )
        for layer in placement.layers:
            packer.pack(layer)
        return len(placement.layers)

    def chosen(self, model: ir.Model) -> Sequence[Layer]:
        """Return the layers that become integer, for steps that prepare their weights.

        The exact rewrites that the weights go through first are done in place.
        """
        self._prepare(model)
        return self._place(model, None).layers

    def _prepare(self, model: ir.Model) -> None:
        edit.inline(model)
        fold(model)
        if self.upsample and "ConvTranspose" not in self.ops:
            upsample(model)

    def _factors(self, placement: Placement, ranges: Ranges) -> dict[ir.Value, Smoothing]:
        if not self.smooth and not self.split:
            return {}
        found = {
            value: smoothing(ranges[str(value.name)], readers, alpha=self.smooth, most=self.split)
            for value, readers in smoothable(placement).items()
            if value.name in ranges
        }
        return {value: factors for value, factors in found.items() if factors is not None}

    def _grids(
        self, placement: Placement, ranges: Ranges, factors: Mapping[ir.Value, Smoothing]
    ) -> dict[ir.Value, _grid.Grid]:
        seen = {
            value: factors[value].seen if value in factors else ranges[str(source.name)]
            for value, source in placement.tensors.items()
        }
        return {
            value: _grid.activation(found, self.activations, symmetric=self.symmetric)
            for value, found in seen.items()
        }

    def _place(self, model: ir.Model, ranges: Ranges | None) -> Placement:
        left = excluded(model, self.exclude)
        found = [x for x in layers(model.graph, self.ops) if x.node not in left]
        convolutions = [x for x in found if x.op == "Conv"]
        first = {x.node for x in convolutions[: self.keep_first]}
        fit = [x for x in found if x.node not in first and self._worth(x)]
        if convolutions and not self.head:
            fit = [x for x in fit if not _is_head(x, {y.node for y in found})]

        def usable(value: ir.Value) -> bool:
            if ranges is None:
                return True
            seen = next((ranges[str(v.name)] for v in moved(value) if v.name in ranges), None)
            return seen is not None and _grid.usable(seen)

        return place(model.graph, fit, self.through, usable, left)

    def _worth(self, layer: Layer) -> bool:
        if layer.op in ("Conv", "ConvTranspose"):
            return layer.bias is None or edit.const_tensor(layer.bias) is not None
        if layer.op == "Gemm" and not _plain(layer):
            return False
        return min(layer.shape[-2:]) >= self.min_side

    def _note(self, model: ir.Model, placement: Placement) -> None:
        done = {layer.node for layer in placement.layers}
        alike = [n for n in edit.every_node(model) if n.op_type in self.ops and n not in done]
        inside = sum(1 for n in alike if n.graph is not model.graph)
        if inside:
            edit.note(model, f"{inside} layers inside If, Loop or Scan bodies stay in float")
        if len(alike) > inside:
            edit.note(
                model, f"{len(alike) - inside} of {len(alike) + len(done)} layers stay in float"
            )


def _is_head(layer: Layer, nodes: set[ir.Node]) -> bool:
    """A matrix product of one row a sample that no other layer follows."""
    shape = layer.x.shape
    one_row = layer.op == "Gemm" or (shape is not None and len(shape) == 2)
    if layer.convolves or not one_row:
        return False
    ahead, seen = [layer.node], {layer.node}
    while ahead:
        for reader in ahead.pop().successors():
            if reader in nodes:
                return False
            if reader not in seen:
                seen.add(reader)
                ahead.append(reader)
    return True


def _plain(layer: Layer) -> bool:
    """A Gemm that the integer kernel computes: bias of one row, not scaled."""
    if layer.bias is None:
        return True
    tensor = edit.const_tensor(layer.bias)
    if tensor is None or edit.attribute(layer.node, "beta", 1.0) != 1.0:
        return False
    shape = tuple(tensor.shape.numpy())
    return bool(shape) and shape[-1] == layer.shape[layer.axis] and shape[-1] == tensor.size
