"""Biases that take up what rounding the weights does to the mean output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.observer import Probe, Ranges
from ortune.core.roles import Role
from ortune.core.wording import format_count
from ortune.graph.ir import edit
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.rounding.matrices import (
    find_bias,
    list_moment_probes,
    read_moments,
    shift_bias,
)
from ortune.quantizers.common.rounding.targets import Preparation, Rounding, list_roundings


@dataclass(frozen=True)
class BiasCorrection(Preparation):
    """Adds ``E[(W - Wq) x]`` to every bias, Wq being W as the step that follows will round it.

    After Nagel et al., 2019, section 4.2, with the means observed on the float model over the
    calibration data. Biases alone change. Errors of rounded activations are not looked at: their
    grids are rounded to nearest, without a mean to take up. A MatMul has a bias only where a
    constant is added to it alone.
    """

    role: ClassVar[Role] = Role.CORRECTS

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the layers that have, or may have, a bias."""
        layers = (
            layer for rounding in list_roundings(model, self.before) for layer in rounding.layers
        )
        return list_moment_probes(
            (layer for layer in layers if find_bias(layer) is not None), products=False
        )

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        targets = list_roundings(model, self.before)
        editor = edit.Editor(model.graph)
        layers = sum(len(rounding.layers) for rounding in targets)
        done = sum(
            _correct_bias(editor, rounding, layer, ranges)
            for rounding in targets
            for layer in rounding.layers
        )
        if not done:
            raise Refused(
                f"of {format_count(layers, 'layer')} none has a constant bias and an observed "
                "input",
                fix="quantize without this step",
            )
        if done < layers:
            edit.add_note(
                model, f"no bias to correct: {layers - done} of {format_count(layers, 'layer')}"
            )
        return done


def _correct_bias(editor: edit.Editor, rounding: Rounding, layer: Layer, ranges: Ranges) -> bool:
    seen = read_moments(layer, ranges, products=False)
    if seen is None:
        return False
    array = layer.read_weight()
    grid = rounding.make_grid(array)
    rounding_error = rounding.columns.split_matrices(
        array.astype(np.float64) - grid.dequantize(grid.quantize(array))
    )
    return shift_bias(editor, layer, rounding_error, seen.mean)
