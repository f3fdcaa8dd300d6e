"""Rounding a matrix so that its products change least, by coordinate descent.

For one output channel with weights w (in steps of its grid), integers q and the inputs' second
moments H, the expected squared change of the product is ``(q - w) H (q - w)``. It is the
layer-wise objective of AdaRound (Nagel et al., 2020) and GPTQ (Frantar et al., 2023). Descent on
one integer at a time, all channels at once, after QuantEase (Behdin et al., 2023): the best q_j is
``w_j - (sum over i != j of H_ij (q_i - w_i)) / H_jj``, rounded. No step makes it worse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 64
"""Columns between two matrix products that bring the gradient up to date."""

_ROWS = 1 << 22
"""Weights at a time: four temporary arrays of this size are held."""


def descend(
    wanted: NDArray[Any],
    second: NDArray[np.float64],
    fixed: NDArray[np.bool_],
    *,
    largest: int,
    sweeps: int,
) -> NDArray[np.float32]:
    """Return integers within -largest..largest.

    Args:
        wanted: Weights in steps, shape [groups, channels, columns].
        second: Damped moments, shape [groups, columns, columns], positive diagonals.
        fixed: Where the nearest integer stays, shape of `wanted`.
        largest: The grid's last integer.
        sweeps: Times that every integer is looked at, at most.
    """
    groups, channels, width = wanted.shape
    order = np.argsort(-np.einsum("gii->gi", second).sum(axis=0), kind="stable")
    hessian = second[:, order][:, :, order].astype(np.float32)
    out = np.empty(wanted.shape, np.float32)
    rows = max(1, _ROWS // (groups * width))
    for start in range(0, channels, rows):
        part = slice(start, start + rows)
        values = np.asarray(wanted[:, part], np.float32)[:, :, order]
        found = _descend(values, hessian, fixed[:, part][:, :, order], largest, sweeps)
        out[:, part, order] = found
    return out


def _descend(
    values: NDArray[np.float32],
    hessian: NDArray[np.float32],
    fixed: NDArray[np.bool_],
    largest: int,
    sweeps: int,
) -> NDArray[np.float32]:
    width = values.shape[2]
    found = np.clip(np.rint(values), -largest, largest)
    for _ in range(sweeps):
        before = found.copy()
        slope = (found - values) @ hessian
        for start in range(0, width, _BLOCK):
            block = slice(start, start + _BLOCK)
            old = found[:, :, block].copy()
            local = hessian[:, block, block]
            _within(found[:, :, block], slope[:, :, block], local, fixed[:, :, block], largest)
            slope += (found[:, :, block] - old) @ hessian[:, block]
        if np.array_equal(found, before):
            break
    return found


def _within(
    found: NDArray[np.float32],
    slope: NDArray[np.float32],
    hessian: NDArray[np.float32],
    fixed: NDArray[np.bool_],
    largest: int,
) -> None:
    """Move the integers of one block in place."""
    slope = slope.copy()
    for j in range(found.shape[2]):
        now = found[:, :, j]
        best = np.clip(np.rint(now - slope[:, :, j] / hessian[:, None, j, j]), -largest, largest)
        step = np.where(fixed[:, :, j], np.float32(0), best - now)
        found[:, :, j] += step
        slope += step[:, :, None] * hessian[:, None, j]
