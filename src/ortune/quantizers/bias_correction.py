"""Biases that take up what rounding the weights does to the mean output."""

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
from ortune.quantizers.common.rounding import (
    Preparation,
    find_bias,
    list_moment_probes,
    list_roundings,
    read_moments,
    shift_bias,
)


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
        biased = (layer for layer in layers if find_bias(layer) is not None)
        return list_moment_probes(biased, products=False)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        targets = list_roundings(model, self.before)
        editor = edit.Editor(model.graph)
        layers = sum(len(rounding.layers) for rounding in targets)
        done = 0
        for rounding, layer in ((r, layer) for r in targets for layer in r.layers):
            seen = read_moments(layer, ranges, products=False)
            if seen is None:
                continue
            array = layer.read_weight()
            grid = rounding.make_grid(array)
            change = array.astype(np.float64) - grid.dequantize(grid.quantize(array))
            done += shift_bias(editor, layer, rounding.columns.split_matrices(change), seen.mean)
        if not done:
            counted = format_count(layers, "layer")
            raise Refused(
                f"of {counted} none has a constant bias and an observed input",
                fix="quantize without this step",
            )
        if done < layers:
            edit.add_note(
                model, f"no bias to correct: {layers - done} of {format_count(layers, 'layer')}"
            )
        return done
