"""Weights rounded so that the layer's output changes least, not each weight by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Moments, Probe, Ranges
from ortune.core.plugins.bounds import Bounds
from ortune.core.roles import Role
from ortune.core.wording import format_count
from ortune.graph.ir import edit
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.rounding.coordinate_descent import round_by_descent
from ortune.quantizers.common.rounding.matrices import (
    find_bias,
    list_moment_probes,
    put_weight,
    read_moments,
    shift_bias,
)
from ortune.quantizers.common.rounding.targets import Preparation, Rounding, list_roundings

_INSIDE = np.float32(1 - 2.0**-22)
"""Keeps what is stored as the largest integer from exceeding the value that set the step."""


@dataclass(frozen=True)
class AdaptiveRounding(Preparation):
    """Puts weights on the grid of the integer step that follows, which finds them there.

    Minimises the expected squared change of every layer's output over the calibration data, one
    layer at a time on the float model's activations. What is left of the mean goes into the bias.
    Every grid keeps its largest value, so int8-static finds the same grid and stores exactly the
    integers chosen here. Weights and biases alone change.

    Attributes:
        sweeps: Times that every weight is looked at; it ends sooner when nothing changes.
        damping: Added to the second moments, as a share of their mean: the less data, the more.
        widest: Layers with more inputs an output are rounded plainly: memory grows with the
            square (8 bytes each).
    """

    role: ClassVar[Role] = Role.ROUNDS

    sweeps: Annotated[int, Bounds(high=1000)] = 4
    damping: float = 0.01
    widest: Annotated[int, Bounds(high=65536)] = 4096

    def __post_init__(self) -> None:
        if self.sweeps < 1 or self.damping <= 0:
            raise BadSettings(
                f"sweeps={self.sweeps}, damping={self.damping} rounds nothing or divides by zero",
                fix="use sweeps >= 1 and damping > 0",
            )

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the layers; the next step's exact rewrites are done first."""
        targets = [r for r in list_roundings(model, self.before) if self._is_narrow_enough(r)]
        return list_moment_probes(layer for rounding in targets for layer in rounding.layers)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        targets = list_roundings(model, self.before)
        editor = edit.Editor(model.graph)
        all_weights = format_count(len(targets), "weight")
        done = sum(
            self._round_weight(editor, rounding, ranges)
            for rounding in targets
            if self._is_narrow_enough(rounding)
        )
        if not done:
            raise Refused(
                f"of {all_weights} none has an observed input of {self.widest} at most",
                fix="raise widest, or quantize without this step",
            )
        if done < len(targets):
            edit.add_note(model, f"rounded plainly: {len(targets) - done} of {all_weights}")
        return done

    def _is_narrow_enough(self, rounding: Rounding) -> bool:
        return rounding.columns.shape[2] <= self.widest

    def _round_weight(self, editor: edit.Editor, rounding: Rounding, ranges: Ranges) -> bool:
        observations = [(layer, read_moments(layer, ranges)) for layer in rounding.layers]
        seen = [(layer, moment) for layer, moment in observations if moment is not None]
        if len(seen) < len(observations):
            return False
        columns = rounding.columns
        array = rounding.layers[0].read_weight()
        old, steps = columns.split_matrices(array), rounding.compute_steps(array)
        fixed = np.abs(old) >= steps * (rounding.largest - 0.001)
        integers = round_by_descent(
            old / steps,
            self._compute_objective(seen),
            fixed,
            largest=rounding.largest,
            sweeps=self.sweeps,
        )
        new = np.where(fixed, old, integers * (steps * _INSIDE)).astype(np.float32)
        for layer, moment in seen:
            shift_bias(editor, layer, old - new, moment.mean)
        put_weight(editor, rounding.layers, columns.join_matrices(new))
        return True

    def _compute_objective(self, seen: Sequence[tuple[Layer, Moments]]) -> NDArray[np.float64]:
        """Return damped second moments: around the mean where a bias takes up its change."""
        total = np.zeros_like(seen[0][1].second)
        for layer, moment in seen:
            total += moment.count * moment.second
            if find_bias(layer) is not None:
                total -= moment.count * (moment.mean[:, :, None] * moment.mean[:, None, :])
        diagonal = np.einsum("gii->gi", total)
        size = diagonal.mean(axis=1, keepdims=True)
        diagonal += np.where(size > 0, self.damping * size, 1.0)
        return total
