"""Rounding of weights in blocks: GPTQ, which needs data, and HQQ, which does not.

GPTQ (Frantar et al., 2022): columns are rounded one after the other, and the error of each is
spread over those still to come by the inverse of the inputs' second moment, in its Cholesky form.
Grids are found beforehand, so that columns may come in any order while blocks stay where they are.

HQQ (Badri & Shaji, 2023): the rounding error is split into a sparse part, found by shrinking with
an l_p norm (p < 1), and a rest that a better grid removes. The zero point is solved as in the
paper, rounded because kernels store integers; the step, which the paper keeps, has the same kind
of solution. Either only finds the nearest optimum, so blocks start from several steps, and of
every block the grid of least squared error is kept: none gets worse than by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortune.core.errors import BadData
from ortune.quantizers.common.block_grid import (
    Array,
    BlockSpec,
    BlockSteps,
    round_steps,
    split_into_blocks,
)

LAZY = 128
"""Columns whose errors are gathered before the rest of the matrix is updated."""

TRIES = 6
"""How often the damping grows tenfold where the moment is not positive definite."""


@dataclass(frozen=True, eq=False)
class Order:
    """In which order columns are rounded and how errors spread.

    Attributes:
        columns: Shape [width].
        spread: Upper Cholesky factor of the inverse moment in that order, shape [width, width].
    """

    columns: Array
    spread: Array


def compute_order(second: Array, damping: float, *, act_order: bool) -> Order:
    """Prepare a layer from the second moment of its inputs.

    Args:
        second: Mean of x x^T, shape [width, width].
        damping: Share of the mean diagonal that is added to it.
        act_order: Columns of large inputs first, while all others can still make up for them.

    Raises:
        BadData: The moment is not finite.
    """
    if not np.isfinite(second).all():
        raise BadData(
            "the inputs of a layer are not finite on the calibration samples",
            fix="see which with `ortune verify`, or use method=hqq, which needs no data",
        )
    diagonal = np.diagonal(second)
    columns = np.argsort(-diagonal, kind="stable") if act_order else np.arange(len(second))
    turned = np.array(second[np.ix_(columns, columns)], np.float64)
    mean = float(diagonal.mean()) or 1.0
    floor = np.where(np.diagonal(turned) <= 0, mean, 0.0)  # inputs that are always zero
    for attempt in range(TRIES):
        damped = turned + np.diag(floor + damping * mean * 10.0**attempt)
        try:
            # With axes reversed the factor is R R^T, R upper, and the inverse's is R^-1 itself.
            lower = np.linalg.cholesky(damped[::-1, ::-1])
            spread = np.triu(np.linalg.inv(lower)[::-1, ::-1])
            return Order(columns, spread.astype(np.float32))
        except np.linalg.LinAlgError:
            continue
    raise BadData(
        "the second moment of a layer's inputs cannot be inverted",
        fix="give more samples, a larger damping, or method=hqq",
    )


def round_rows(rows: Array, steps: BlockSteps, order: Order, spec: BlockSpec) -> Array:
    """Round float32 rows [rows, width] to whole floats in 0..top, [rows, blocks, block]."""
    remaining = np.ascontiguousarray(rows.T[order.columns])  # a column is a contiguous row here
    scale, zero = np.ascontiguousarray(steps.scale.T), np.ascontiguousarray(steps.zero.T)
    integers = np.empty_like(remaining)
    width = len(remaining)
    for start in range(0, width, LAZY):
        end = min(start + LAZY, width)
        errors = np.empty_like(remaining[start:end])
        for index in range(start, end):
            block = order.columns[index] // spec.block
            step, middle = scale[block], zero[block]
            whole = np.clip(np.rint(remaining[index] / step) + middle, 0, spec.top)
            integers[order.columns[index]] = whole
            error = (remaining[index] - (whole - middle) * step) / order.spread[index, index]
            remaining[index + 1 : end] -= np.outer(order.spread[index, index + 1 : end], error)
            errors[index - start] = error
        remaining[end:] -= order.spread[start:end, end:].T @ errors
    padded = split_into_blocks(integers.T, spec)
    short = spec.count_blocks(width) * spec.block - width
    if short:
        padded = np.array(padded)
        padded[:, -1, spec.block - short :] = steps.zero[:, -1:]
    return padded


STARTS = (1.0, 1.05, 0.95, 0.9, 0.85, 0.8)
"""Factors of the covering step: a smaller one clips the largest weights of a block."""

SPARSITY = 10.0
"""Weight of the sparse part, in units of a block's largest weight."""

CHUNK = 1 << 17
"""Weights refined at a time: what is worked on stays in the CPU's cache."""


def refine_steps(
    folded: Array, start: BlockSteps, spec: BlockSpec, dtype: Any = np.float32
) -> BlockSteps:
    """Return grids whose squared rounding error is at most that of `start`, block by block.

    Weights are folded, shape [rows, blocks, block]; steps are stored in `dtype`.
    """
    scale, zero = start.scale.copy(), start.zero.copy()
    step = max(1, CHUNK // max(1, folded[0].size)) if len(folded) else 1
    for first in range(0, len(folded), step):
        part = slice(first, first + step)
        grids = _refine_chunk(folded[part], BlockSteps(scale[part], zero[part]), spec, dtype)
        scale[part], zero[part] = grids.scale, grids.zero
    return BlockSteps(scale, zero)


def _refine_chunk(folded: Array, start: BlockSteps, spec: BlockSpec, dtype: Any) -> BlockSteps:
    size = np.maximum(np.abs(folded).max(axis=-1, keepdims=True), 1e-30)
    best = np.full(start.scale.shape, np.inf, folded.dtype)
    kept = BlockSteps(start.scale.copy(), start.zero.copy())
    for factor in STARTS:
        scale = (
            start.scale if factor == 1.0 else round_steps(start.scale * np.float32(factor), dtype)
        )
        steps = BlockSteps(scale, start.zero)
        integers, error = _keep_better(folded, steps, spec, best, kept)
        # Return the grids that fit the weights less their sparse errors best, integers given.
        sparse = _shrink_errors(error / size) * size
        targets = np.subtract(folded, sparse, out=sparse)
        zero = steps.zero
        if not spec.symmetric:
            zero = np.rint(np.mean(integers - targets / steps.scale[..., None], axis=-1))
            zero = np.clip(zero, 0, spec.top)
        integers -= zero[..., None]
        square = np.einsum("rbk,rbk->rb", integers, integers)
        product = np.einsum("rbk,rbk->rb", integers, targets)
        solved = BlockSteps(
            np.where(square > 0, product / np.maximum(square, 1), steps.scale), zero
        )
        _keep_better(
            folded, BlockSteps(round_steps(solved.scale, dtype), solved.zero), spec, best, kept
        )
    return kept


def _keep_better(
    folded: Array, steps: BlockSteps, spec: BlockSpec, best: Array, kept: BlockSteps
) -> tuple[Array, Array]:
    """Round, keep the grids that err less than the best so far, return integers and errors."""
    integers = steps.quantize_blocks(folded, spec)
    error = folded - steps.dequantize_blocks(integers)
    loss = np.einsum("rbk,rbk->rb", error, error)
    better = loss < best
    np.copyto(best, loss, where=better)
    np.copyto(kept.scale, steps.scale, where=better)
    np.copyto(kept.zero, steps.zero, where=better)
    return integers, error


def _shrink_errors(error: Array) -> Array:
    """Soft-threshold for p = 1/2: about minimize ``|e|^p + SPARSITY / 2 (e - error)^2``."""
    size = np.abs(error)
    threshold = np.sqrt(np.maximum(size, 1e-8))
    np.reciprocal(threshold, out=threshold)
    threshold /= SPARSITY
    size -= threshold
    np.maximum(size, 0, out=size)
    return np.copysign(size, error, out=size)
