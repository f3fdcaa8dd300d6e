"""Weights rounded so that the layer's output changes least, not each weight by itself.

For one output channel with weights w (in steps of its grid), integers q and the inputs' second
moments H, the expected squared change of the product is ``(q - w) H (q - w)``: the layer-wise
objective of AdaRound (Nagel et al., 2020) and GPTQ (Frantar et al., 2023). With ``H = R^T R``,
R upper triangular, it is ``|R (q - w)|^2``. All channels at once:

- one integer after the other is rounded, from the last to the first, each making up for the
  errors of those before it (Babai's nearest plane, which is GPTQ's result without an inverse);
- where that is no better than rounding to nearest, that is taken instead;
- then one integer at a time is moved to its best value, ``q_j - (H (q - w))_j / H_jj`` rounded,
  until nothing moves (QuantEase, Behdin et al., 2023).

So the result is never worse than rounding to nearest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Probe, Ranges
from ortune.core.plugins.bounds import Bounds
from ortune.core.roles import Role
from ortune.core.wording import format_count
from ortune.graph.ir import edit
from ortune.quantizers.common.rounding import (
    Preparation,
    Rounding,
    find_bias,
    list_moment_probes,
    list_roundings,
    put_weight,
    read_moments,
    shift_bias,
)

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
        widest: Layers with more inputs an output are rounded to nearest: memory grows with the
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
        narrow = [rounding for rounding in targets if self._is_narrow_enough(rounding)]
        done = sum(self._round_weight(editor, rounding, ranges) for rounding in narrow)
        if not done:
            raise Refused(
                f"of {all_weights} none has an observed input of {self.widest} at most",
                fix="raise widest, or quantize without this step",
            )
        if done < len(targets):
            edit.add_note(model, f"rounded to nearest: {len(targets) - done} of {all_weights}")
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
        # Damped second moments: around the mean where a bias takes up its change.
        objective = np.zeros_like(seen[0][1].second)
        for layer, moment in seen:
            objective += moment.count * moment.second
            if find_bias(layer) is not None:
                objective -= moment.count * (moment.mean[:, :, None] * moment.mean[:, None, :])
        diagonal = np.einsum("gii->gi", objective)
        size = diagonal.mean(axis=1, keepdims=True)
        diagonal += np.where(size > 0, self.damping * size, 1.0)
        limits = {"largest": rounding.largest, "sweeps": self.sweeps}
        integers = round_by_descent(old / steps, objective, fixed, **limits)
        new = np.where(fixed, old, integers * (steps * _INSIDE)).astype(np.float32)
        for layer, moment in seen:
            shift_bias(editor, layer, old - new, moment.mean)
        put_weight(editor, rounding.layers, columns.join_matrices(new))
        return True


Floats: TypeAlias = NDArray[np.float32]

_BLOCK = 64
"""Columns between two matrix products over all columns."""

_ROWS = 1 << 22
"""Weights at a time: six temporary arrays of this size are held."""


def round_by_descent(
    weights: NDArray[Any],
    second: NDArray[np.float64],
    fixed: NDArray[np.bool_],
    *,
    largest: int,
    sweeps: int,
) -> Floats:
    """Return integers within -largest..largest.

    Args:
        weights: Weights in steps, shape [groups, channels, columns].
        second: Damped moments, shape [groups, columns, columns], positive diagonals.
        fixed: Where the nearest integer stays, shape of `weights`.
        largest: The grid's last integer.
        sweeps: Times that every integer is looked at, at most.
    """
    groups, channels, width = weights.shape
    order = np.argsort(np.einsum("gii->gi", second).sum(axis=0), kind="stable")
    moments, lower = _factor_moments(second[:, order][:, :, order])
    upper = lower.transpose(0, 2, 1).astype(np.float32)
    hessian = moments.astype(np.float32)
    out = np.empty(weights.shape, np.float32)
    rows = max(1, _ROWS // (groups * width))
    for start in range(0, channels, rows):
        part = slice(start, start + rows)
        values = np.asarray(weights[:, part], np.float32)[:, :, order]
        chunk = _Channels(values, fixed[:, part][:, :, order], largest)
        nearest, planes = chunk.round_nearest(values), chunk.round_by_planes(upper)
        better = _compute_loss(planes - values, upper) < _compute_loss(nearest - values, upper)
        integers = np.where(better, planes, nearest)
        out[:, part, order] = chunk.descend_coordinates(integers, hessian, sweeps)
    return out


def _factor_moments(
    second: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return moments with their lower Cholesky factor, damped more where rounding needs it.

    Taking off a mean that is far larger than the spread leaves eigenvalues below zero.
    """
    size = np.einsum("gii->gi", second).mean(axis=1)[:, None, None]
    unit = np.eye(second.shape[1])
    damped = second
    for attempt in range(-2, 4):
        try:
            return damped, np.asarray(np.linalg.cholesky(damped), np.float64)
        except np.linalg.LinAlgError:
            damped = second + unit * size * 10.0**attempt
    # Dominated by its diagonal: whatever the numbers were, this is positive definite.
    damped = unit * np.maximum(size, 1.0)
    return damped, np.sqrt(damped)


def _compute_loss(error: Floats, upper: Floats) -> Floats:
    seen = error @ upper.transpose(0, 2, 1)
    return np.asarray(np.square(seen, out=seen).sum(axis=2, keepdims=True))


@dataclass(frozen=True)
class _Channels:
    """Some channels, shape [groups, channels, columns]; all arrays are in steps of the grid."""

    values: Floats
    fixed: NDArray[np.bool_]
    largest: int

    def round_nearest(self, values: Floats) -> Floats:
        return np.asarray(np.clip(np.rint(values), -self.largest, self.largest), np.float32)

    def round_by_planes(self, upper: Floats) -> Floats:
        """Round one column after the other, from the last, by the nearest plane."""
        values = self.values
        error = np.zeros_like(values)
        for end in range(values.shape[2], 0, -_BLOCK):
            start = max(0, end - _BLOCK)
            behind = error[:, :, end:] @ upper[:, start:end, end:].transpose(0, 2, 1)
            for j in range(end - 1, start - 1, -1):
                inner = error[:, :, j + 1 : end] @ upper[:, j, j + 1 : end, None]
                made_up = (behind[:, :, j - start] + inner[:, :, 0]) / upper[:, None, j, j]
                target = values[:, :, j] - np.where(self.fixed[:, :, j], np.float32(0), made_up)
                error[:, :, j] = self.round_nearest(target) - values[:, :, j]
        return np.asarray(np.rint(values + error), np.float32)

    def descend_coordinates(self, integers: Floats, hessian: Floats, sweeps: int) -> Floats:
        for _ in range(sweeps):
            before = integers.copy()
            slope = np.asarray((integers - self.values) @ hessian, np.float32)
            for start in range(0, integers.shape[2], _BLOCK):
                block = slice(start, start + _BLOCK)
                old = integers[:, :, block].copy()
                local, curve = slope[:, :, block].copy(), hessian[:, block, block]
                for j in range(local.shape[2]):
                    now = integers[:, :, block][:, :, j]
                    best = self.round_nearest(now - local[:, :, j] / curve[:, None, j, j])
                    step = np.where(self.fixed[:, :, block][:, :, j], np.float32(0), best - now)
                    now += step
                    local += step[:, :, None] * curve[:, None, j]
                slope += (integers[:, :, block] - old) @ hessian[:, block]
            if np.array_equal(integers, before):
                break
        return integers
