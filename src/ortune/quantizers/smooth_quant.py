"""Outliers of activations moved into the weights, so that one step for all channels is fine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core import wording
from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Observer, Probe, Ranges
from ortune.core.plugins import catalog
from ortune.core.plugins.bounds import SHARE, Bounds
from ortune.core.roles import Role
from ortune.graph.ir import edit
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.nodes import multiplied
from ortune.quantizers.common.qdq.smooth import Smoothing, absorb, add_product, smoothing
from ortune.quantizers.common.rounding.matrices import biased, put_weight
from ortune.quantizers.common.rounding.targets import Preparation, roundings


@dataclass(frozen=True)
class SmoothQuant(Preparation):
    """Divides the channels of matrix products' inputs and multiplies the weights' rows by as much.

    ``x @ W == (x / s) @ (s * W)`` with ``s = max|x|^alpha / max|W|^(1 - alpha)`` a channel, after
    Xiao et al., 2023. The division goes into the LayerNormalization, Mul, MatMul or Gemm that
    makes x where nothing else reads x; else it is a Mul of its own. Exact but for rounding.

    Channels of a narrowing layer that reach far beyond all others are instead set to zero, and a
    small float product beside the large one takes them.

    int8-static(smooth=0.75, split=4) does the same with a Mul for every division, and none for
    what is split off; this step stands by itself where others, such as adaptive-rounding, prepare
    the weights after it.

    Attributes:
        alpha: Share of the outliers that moves into the weights, above 0 and up to 1; below 0.6
            embeddings of MiniLM were worse than without.
        split: Channels, at most, that a float product takes.
        fold: Move the division into what makes x where that is exact.
    """

    role: ClassVar[Role] = Role.SMOOTHS

    alpha: Annotated[float, SHARE] = 0.75
    split: Annotated[int, Bounds(high=64)] = 4
    fold: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise BadSettings(
                f"smooth-quant(alpha={self.alpha}) moves nothing", fix="use 0 < alpha <= 1"
            )

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        channels = catalog.load(Observer, "channels")()
        return [Probe(str(value.name), channels) for value in self._read(model)]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        read = self._read(model)
        editor = edit.Editor(model.graph)
        done = folded = beside = 0
        for value, layers in read.items():
            seen = ranges.get(str(value.name))
            found = seen and smoothing(seen, layers, alpha=self.alpha, most=self.split)
            if not found:
                continue
            done += 1
            folded += self._smooth(editor, value, layers, found)
            beside += bool(found.split)
        if not done:
            raise Refused(
                "there is no matrix product whose input has a fixed number of channels",
                fix="smooth-quant is for transformers; see cross-layer-equalization for others",
            )
        edit.note(
            model, f"{folded} of {wording.count(done - beside, 'division')} free at run time"
        )
        if beside:
            edit.note(
                model, f"{wording.count(beside, 'activation')} with channels apart, in float"
            )
        return done

    def _read(self, model: ir.Model) -> dict[ir.Value, list[Layer]]:
        found: dict[ir.Value, list[Layer]] = {}
        for rounding in roundings(model, self.before):
            shared = len({layer.x for layer in rounding.layers}) > 1
            for layer in rounding.layers:
                if not shared and not layer.convolves and layer.node.graph is model.graph:
                    found.setdefault(layer.x, []).append(layer)
        widths = {x: {Smoothing.width(one) for one in layers} for x, layers in found.items()}
        return {x: layers for x, layers in found.items() if len(widths[x]) == 1}

    def _smooth(
        self, editor: edit.Editor, value: ir.Value, layers: list[Layer], found: Smoothing
    ) -> bool:
        """Edit the weights and the activation, and say whether that is free at run time."""
        nodes, width = {layer.node for layer in layers}, found.width(layers[0])
        for layer in layers:
            if found.split:
                _beside(editor, layer, found.split)
            put_weight(editor, [layer], found.scaled(layer, layer.array()))
        if found.factor is None:
            inverse = np.ones(width, np.float32)
            inverse[list(found.split)] = 0
        else:
            inverse = (1 / found.factor).astype(np.float32)
            if self.fold and absorb(editor, value, inverse, nodes):
                return True
        divided = multiplied(editor, value, inverse, editor.graph)
        for node in nodes:
            node.replace_input_with(0, divided)
        return False


def _beside(editor: edit.Editor, layer: Layer, split: tuple[int, ...]) -> None:
    alpha = float(edit.attribute(layer.node, "alpha", 1.0)) if layer.op == "Gemm" else 1.0
    place = biased(layer)
    last = layer.node if place is None else place[0]
    add_product(editor, layer, layer.array() * np.float32(alpha), split, last)
