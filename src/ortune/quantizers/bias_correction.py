"""Biases that take up what rounding the weights does to the mean output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.observer import Probe, Ranges
from ortune.core.step import Quantizer
from ortune.model.graph import edit
from ortune.quantization.layers import Layer
from ortune.quantization.rounding.matrices import biased, moments, shift, watch
from ortune.quantization.rounding.targets import Rounding, roundings


@dataclass(frozen=True)
class BiasCorrection(Quantizer):
    """Adds ``E[(W - Wq) x]`` to every bias, Wq being W as the step that follows will round it.

    After Nagel et al., 2019, section 4.2, with the means observed on the float model over the
    calibration data. Biases alone change. Errors of rounded activations are not looked at: their
    grids are rounded to nearest, without a mean to take up. A MatMul has a bias only where a
    constant is added to it alone.

    Attributes:
        before: The step that follows, with its settings; int8-static by default.
    """

    needs_opset: ClassVar[int] = 13

    before: Quantizer | None = None

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the layers that have, or may have, a bias.

        The exact rewrites of the step that follows are done in place first.
        """
        return watch(
            (
                layer
                for rounding in roundings(model, self.before)
                for layer in rounding.layers
                if biased(layer) is not None
            ),
            products=False,
        )

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Correct in place and return how many biases were.

        Raises:
            Refused: No layer that the step takes has a bias and an observed input.
            BadSettings: `before` is no step that this one can prepare for.
        """
        found = roundings(model, self.before)
        editor = edit.Editor(model.graph)
        count = sum(len(one.layers) for one in found)
        done = sum(_correct(editor, one, layer, ranges) for one in found for layer in one.layers)
        if not done:
            raise Refused(
                f"of {count} layers none has a constant bias and an observed input",
                fix="quantize without this step",
            )
        if done < count:
            edit.note(model, f"{count - done} of {count} layers have no bias to correct")
        return done


def _correct(editor: edit.Editor, rounding: Rounding, layer: Layer, ranges: Ranges) -> bool:
    seen = moments(layer, ranges, products=False)
    if seen is None:
        return False
    array = layer.array()
    lost = rounding.columns.split(array.astype(np.float64) - rounding.rounded(array))
    return shift(editor, layer, np.einsum("gcw,gw->gc", lost, seen.mean).reshape(-1))
