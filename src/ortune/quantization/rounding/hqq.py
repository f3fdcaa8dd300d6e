"""Half-quadratic refinement of block grids, without data.

Badri & Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023): the rounding
error is split into a sparse part, found by shrinking with an l_p norm (p < 1), and a rest that a
better grid removes. The zero point is solved as in the paper, rounded because kernels store
integers; the step, which the paper keeps, has the same kind of solution. Either only finds the
nearest optimum, so blocks start from several steps. Of every block the grid of least squared error
is kept: none gets worse than by rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortune.quantization.block_grid import Array, BlockSteps, Spec, usable

STARTS = (1.0, 1.05, 0.95, 0.9, 0.85, 0.8)
"""Factors of the covering step: a smaller one clips the largest weights of a block."""

SPARSITY = 10.0
"""Weight of the sparse part, in units of a block's largest weight."""

CHUNK = 1 << 17
"""Weights refined at a time: what is worked on stays in the CPU's cache."""


def refine(folded: Array, start: BlockSteps, spec: Spec, dtype: Any = np.float32) -> BlockSteps:
    """Return grids whose squared rounding error is at most that of `start`, block by block.

    Weights are folded, shape [rows, blocks, block]; steps are stored in `dtype`.
    """
    scale, zero = start.scale.copy(), start.zero.copy()
    step = max(1, CHUNK // max(1, folded[0].size)) if len(folded) else 1
    for first in range(0, len(folded), step):
        part = slice(first, first + step)
        found = _refine(folded[part], BlockSteps(scale[part], zero[part]), spec, dtype)
        scale[part], zero[part] = found.scale, found.zero
    return BlockSteps(scale, zero)


def _refine(folded: Array, start: BlockSteps, spec: Spec, dtype: Any) -> BlockSteps:
    size = np.maximum(np.abs(folded).max(axis=-1, keepdims=True), 1e-30)
    best = np.full(start.scale.shape, np.inf, folded.dtype)
    kept = BlockSteps(start.scale.copy(), start.zero.copy())
    for factor in STARTS:
        scale = start.scale if factor == 1.0 else usable(start.scale * np.float32(factor), dtype)
        steps = BlockSteps(scale, start.zero)
        integers, error = _keep(folded, steps, spec, best, kept)
        # Return the grids that fit the weights less their sparse errors best, integers given.
        sparse = _shrink(error / size) * size
        wanted = np.subtract(folded, sparse, out=sparse)
        zero = steps.zero
        if not spec.symmetric:
            zero = np.rint(np.mean(integers - wanted / steps.scale[..., None], axis=-1))
            zero = np.clip(zero, 0, spec.top)
        integers -= zero[..., None]
        square = np.einsum("rbk,rbk->rb", integers, integers)
        product = np.einsum("rbk,rbk->rb", integers, wanted)
        solved = BlockSteps(
            np.where(square > 0, product / np.maximum(square, 1), steps.scale), zero
        )
        _keep(folded, BlockSteps(usable(solved.scale, dtype), solved.zero), spec, best, kept)
    return kept


def _keep(
    folded: Array, steps: BlockSteps, spec: Spec, best: Array, kept: BlockSteps
) -> tuple[Array, Array]:
    """Round, keep the grids that err less than the best so far, return integers and errors."""
    integers = steps.integers(folded, spec)
    error = folded - steps.values(integers)
    loss = np.einsum("rbk,rbk->rb", error, error)
    better = loss < best
    np.copyto(best, loss, where=better)
    np.copyto(kept.scale, steps.scale, where=better)
    np.copyto(kept.zero, steps.zero, where=better)
    return integers, error


def _shrink(error: Array) -> Array:
    """Soft-threshold for p = 1/2: about minimize ``|e|^p + SPARSITY / 2 (e - error)^2``."""
    size = np.abs(error)
    threshold = np.sqrt(np.maximum(size, 1e-8))
    np.reciprocal(threshold, out=threshold)
    threshold /= SPARSITY
    size -= threshold
    np.maximum(size, 0, out=size)
    return np.copysign(size, error, out=size)
