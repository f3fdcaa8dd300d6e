"""Outliers of activations moved into the weights, so that one step for all channels is fine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core import catalog
from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Observer, Probe, Ranges
from ortune.core.step import Quantizer
from ortune.model import edit
from ortune.quantizers._absorb import absorb, multiplied
from ortune.quantizers._columns import put_weight
from ortune.quantizers._layers import Layer
from ortune.quantizers._smooth import Smoothing, smoothing
from ortune.quantizers._target import roundings


@dataclass(frozen=True)
class SmoothQuant(Quantizer):
    """Divides the channels of matrix products' inputs and multiplies the weights' rows by as much.

    ``x @ W == (x / s) @ (s * W)`` with ``s = max|x|^alpha / max|W|^(1 - alpha)`` a channel, after
    Xiao et al., 2023. The division goes into the LayerNormalization, Mul, MatMul or Gemm that
    makes x where nothing else reads x; else it is a Mul of its own. Exact but for rounding.

    int8-static(smooth=0.75) does the same with a Mul everywhere; this step stands by itself where
    others, such as adaptive-rounding, prepare the weights after it.

    Attributes:
        before: The step that follows, with its settings; int8-static by default.
        alpha: Share of the outliers that moves into the weights, above 0 and up to 1; below 0.6
            embeddings of MiniLM were worse than without.
        fold: Move the division into what makes x where that is exact.
    """

    needs_opset: ClassVar[int] = 13

    before: Quantizer | None = None
    alpha: float = 0.75
    fold: bool = True

    def __post_init__(self) -> None:
        """Check the share.

        Raises:
            BadSettings: It is not above 0 and at most 1.
        """
        if not 0 < self.alpha <= 1:
            raise BadSettings(
                f"smooth-quant(alpha={self.alpha}) moves nothing", fix="use 0 < alpha <= 1"
            )

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the matrix products.

        The exact rewrites of the step that follows are done in place first.
        """
        channels = catalog.load(Observer, "channels")()
        return [Probe(str(value.name), channels) for value in self._read(model)]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Smooth in place and return how many activations were.

        Raises:
            Refused: There is no matrix product, or none whose input was observed by channel.
            BadSettings: `before` is no step that this one can prepare for.
        """
        read = self._read(model)
        editor = edit.Editor(model.graph)
        done = folded = 0
        for value, layers in read.items():
            seen = ranges.get(str(value.name))
            found = seen and smoothing(seen, layers, alpha=self.alpha, most=0)
            if not found or found.factor is None:
                continue
            done += 1
            folded += self._smooth(editor, value, layers, found)
        if not done:
            raise Refused(
                "there is no matrix product whose input has a fixed number of channels",
                fix="smooth-quant is for transformers; see cross-layer-equalization for others",
            )
        edit.note(model, f"{folded} of {done} divisions cost nothing at run time")
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
        assert found.factor is not None
        for layer in layers:
            put_weight(editor, [layer], found.scaled(layer, layer.array()))
        nodes = {layer.node for layer in layers}
        inverse = (1 / found.factor).astype(np.float32)
        if self.fold and absorb(editor, value, inverse, nodes):
            return True
        divided = multiplied(editor, value, inverse)
        for node in nodes:
            node.replace_input_with(0, divided)
        return False
