"""Outliers of activations moved into the weights, so that one step for all channels is fine."""

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
from ortune.quantizers.common.nodes import multiply_channels
from ortune.quantizers.common.qdq import smooth
from ortune.quantizers.common.rounding import Preparation, find_bias, list_roundings, put_weight


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
        channels = catalog.load_plugin(Observer, "channels")()
        return [Probe(str(value.name), channels) for value in self._find_readers(model)]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        read = self._find_readers(model)
        editor = edit.Editor(model.graph)
        done = folded = beside = 0
        for value, layers in read.items():
            seen = ranges.get(str(value.name))
            choice = seen and smooth.compute_smoothing(
                seen, layers, alpha=self.alpha, most=self.split
            )
            if not choice:
                continue
            done += 1
            folded += self._smooth_layers(editor, value, layers, choice)
            beside += bool(choice.split)
        if not done:
            raise Refused(
                "there is no matrix product whose input has a fixed number of channels",
                fix="smooth-quant is for transformers; see cross-layer-equalization for others",
            )
        divisions = wording.format_count(done - beside, "division")
        edit.add_note(model, f"{folded} of {divisions} free at run time")
        if beside:
            activations = wording.format_count(beside, "activation")
            edit.add_note(model, f"{activations} with channels apart, in float")
        return done

    def _find_readers(self, model: ir.Model) -> dict[ir.Value, list[Layer]]:
        readers: dict[ir.Value, list[Layer]] = {}
        for rounding in list_roundings(model, self.before):
            shared = len({layer.x for layer in rounding.layers}) > 1
            for layer in rounding.layers:
                if not shared and not layer.convolves and layer.node.graph is model.graph:
                    readers.setdefault(layer.x, []).append(layer)
        widths = {
            x: {smooth.Smoothing.count_input_channels(reader) for reader in layers}
            for x, layers in readers.items()
        }
        return {x: layers for x, layers in readers.items() if len(widths[x]) == 1}

    def _smooth_layers(
        self, editor: edit.Editor, value: ir.Value, layers: list[Layer], choice: smooth.Smoothing
    ) -> bool:
        """Edit the weights and the activation, and say whether that is free at run time."""
        nodes, width = {layer.node for layer in layers}, choice.count_input_channels(layers[0])
        for layer in layers:
            if choice.split:
                alpha = (
                    edit.read_attribute(layer.node, "alpha", 1.0) if layer.op == "Gemm" else 1.0
                )
                place = find_bias(layer)
                last = layer.node if place is None else place[0]
                smooth.add_product(
                    editor, layer, layer.read_weight() * np.float32(alpha), choice.split, last
                )
            put_weight(editor, [layer], choice.scale_weight(layer, layer.read_weight()))
        if choice.factor is None:
            inverse = np.ones(width, np.float32)
            inverse[list(choice.split)] = 0
        else:
            inverse = (1 / choice.factor).astype(np.float32)
            if self.fold and smooth.absorb_factor(editor, value, inverse, nodes):
                return True
        divided = multiply_channels(editor, value, inverse, editor.graph)
        for node in nodes:
            node.replace_input_with(0, divided)
        return False
