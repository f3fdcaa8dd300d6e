"""Weights clipped where a finer step gains more than their largest values lose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Probe, Ranges
from ortune.core.plugins.bounds import SHARE, Bounds
from ortune.core.roles import Role
from ortune.core.wording import format_count
from ortune.graph.ir import edit
from ortune.quantizers.common.rounding import (
    Preparation,
    Rounding,
    list_moment_probes,
    list_roundings,
    put_weight,
    read_moments,
    shift_bias,
)


@dataclass(frozen=True)
class ClipWeights(Preparation):
    """Clips the weights of every grid to the bound of least squared rounding error.

    The grid of the integer step that follows ends at the largest value, so it becomes the finer
    one. Without data all weights count alike; with it each counts by the mean square of what it is
    multiplied with, and biases take up the mean of what was clipped. Weights and biases alone
    change.

    Attributes:
        weighted: Use calibration data.
        least: The smallest bound tried, as a share of the largest value.
        bounds: How many are tried, the largest value included.
    """

    role: ClassVar[Role] = Role.CLIPS

    weighted: bool = False
    least: Annotated[float, SHARE] = 0.5
    bounds: Annotated[int, Bounds(high=10000)] = 26

    def __post_init__(self) -> None:
        if self.bounds < 2 or not 0 < self.least < 1:
            raise BadSettings(
                f"least={self.least}, bounds={self.bounds} clips nothing",
                fix="use 0 < least < 1 and bounds >= 2",
            )

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the layers, nothing when not weighted."""
        targets = list_roundings(model, self.before)
        return list_moment_probes(x for r in targets for x in r.layers) if self.weighted else []

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        targets = list_roundings(model, self.before)
        editor = edit.Editor(model.graph)
        all_weights = format_count(len(targets), "weight")
        done = 0
        for rounding in targets:
            columns, array = rounding.columns, rounding.layers[0].read_weight()
            old = columns.split_matrices(array)
            seen = [(layer, read_moments(layer, ranges)) for layer in rounding.layers]
            squares = [np.einsum("gii->gi", m.second) for _, m in seen if m is not None]
            power = np.sum(squares, axis=0) if squares else np.ones((1, 1))
            top = rounding.compute_steps(array) * rounding.largest
            share = self._find_best_share(old, top, power.astype(np.float32), rounding)
            bound = np.where(share < 1, share * top, np.inf).astype(np.float32)
            new = np.clip(old, -bound, bound)
            if np.array_equal(new, old):
                continue
            for layer, moment in seen:
                if moment is not None:
                    shift_bias(editor, layer, old - new, moment.mean)
            put_weight(editor, rounding.layers, columns.join_matrices(new))
            done += 1
        if not done:
            raise Refused(
                f"clipping lowers the rounding error of none of {all_weights}",
                fix="quantize without this step",
            )
        if done < len(targets):
            edit.add_note(model, f"best unclipped: {len(targets) - done} of {all_weights}")
        return done

    def _find_best_share(
        self,
        values: NDArray[np.float32],
        top: NDArray[np.float32],
        power: NDArray[np.float32],
        rounding: Rounding,
    ) -> NDArray[np.float32]:
        """Return the best bound as a share of `top`, shape [groups, channels, 1]."""
        best = np.ones(top.shape, np.float32)
        least = np.full(top.shape, np.inf, np.float32)
        for share in np.linspace(1, self.least, self.bounds, dtype=np.float32):
            step = top * (share / rounding.largest)
            rounded = np.clip(np.rint(values / step), -rounding.largest, rounding.largest) * step
            error = np.square(rounded - values) * power[:, None]
            loss = error.sum(axis=2, keepdims=True)
            if not rounding.per_channel:
                loss = np.broadcast_to(loss.sum(), top.shape)
            better = loss < least
            best, least = np.where(better, share, best), np.where(better, loss, least)
        return best
