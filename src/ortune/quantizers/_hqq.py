"""Half-quadratic refinement of block grids, without data.

Badri & Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023): the rounding
error is split into a sparse part, found by shrinking with an l_p norm (p < 1), and a rest that a
better grid removes; the two are solved in turn. The zero point is solved as in the paper, rounded
because kernels store integers; the step, which the paper keeps, has the same kind of solution. Of
every block the grid of least squared error is kept, so none gets worse than by rounding.
"""

from __future__ import annotations

import numpy as np

from ortune.quantizers._blocks import Array, Spec, Steps, usable

NORM = 0.7
ROUNDS = 12
SPARSITY, GROWTH = 10.0, 1.01
"""Weight of the sparse part at first and its growth a round, in units of the largest weight."""

PATIENCE = 2
"""Rounds without a block that improves, after which it stops."""


def refine(folded: Array, start: Steps, spec: Spec, dtype: object = np.float32) -> Steps:
    """Return grids whose squared rounding error is at most that of `start`, block by block.

    Args:
        folded: Weights, shape [rows, blocks, block].
        start: Grids of these blocks.
        spec: Their kind.
        dtype: In which steps are stored.
    """
    size = np.maximum(np.abs(folded).max(axis=-1, keepdims=True), 1e-30)
    scale, zero = start.scale, start.zero
    best_scale, best_zero = scale.copy(), zero.copy()
    best = np.full(scale.shape, np.inf, folded.dtype)
    beta, idle = SPARSITY, 0
    for _ in range(ROUNDS):
        steps = Steps(scale, zero)
        integers = steps.integers(folded, spec)
        error = folded - steps.values(integers)
        loss = np.einsum("rbk,rbk->rb", error, error)
        better = loss < best
        np.copyto(best, loss, where=better)
        np.copyto(best_scale, scale, where=better)
        np.copyto(best_zero, zero, where=better)
        idle = 0 if better.any() else idle + 1
        if idle == PATIENCE:
            break
        error /= size
        wanted = folded - _shrink(error, beta) * size
        if not spec.symmetric:
            zero = np.rint(np.mean(integers - wanted / scale[..., None], axis=-1))
            zero = np.clip(zero, 0, spec.top)
        integers -= zero[..., None]
        square = np.einsum("rbk,rbk->rb", integers, integers)
        solved = np.einsum("rbk,rbk->rb", integers, wanted) / np.maximum(square, 1)
        scale = usable(np.where(square > 0, solved, scale), dtype)
        beta *= GROWTH
    return Steps(best_scale, best_zero)


def _shrink(error: Array, beta: float) -> Array:
    """Generalized soft-thresholding: the minimizer of ``|e|^p + beta/2 (e - error)^2``, about."""
    size = np.abs(error)
    threshold = np.power(np.maximum(size, 1e-8), NORM - 1)
    size -= threshold / beta
    return np.asarray(np.sign(error) * np.maximum(size, 0, out=size))
