"""Rounding that lets later weights of a row make up for the errors of earlier ones.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers" (2022): columns are rounded one after the other, and the error of each is spread
over those still to come by the inverse of the inputs' second moment, in its Cholesky form. Grids
are found beforehand, so that columns may come in any order while blocks stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortune.core.errors import BadData
from ortune.quantization.block_grid import Array, BlockSteps, Spec, fold

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


def order(second: Array, damping: float, *, act_order: bool) -> Order:
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


def round_rows(rows: Array, steps: BlockSteps, found: Order, spec: Spec) -> Array:
    """Round float32 rows [rows, width] to whole floats in 0..top, [rows, blocks, block]."""
    left = np.ascontiguousarray(rows.T[found.columns])  # a column is a contiguous row here
    scale, zero = np.ascontiguousarray(steps.scale.T), np.ascontiguousarray(steps.zero.T)
    integers = np.empty_like(left)
    width = len(left)
    for start in range(0, width, LAZY):
        end = min(start + LAZY, width)
        errors = np.empty_like(left[start:end])
        for index in range(start, end):
            block = found.columns[index] // spec.block
            step, middle = scale[block], zero[block]
            whole = np.clip(np.rint(left[index] / step) + middle, 0, spec.top)
            integers[found.columns[index]] = whole
            error = (left[index] - (whole - middle) * step) / found.spread[index, index]
            left[index + 1 : end] -= np.outer(found.spread[index, index + 1 : end], error)
            errors[index - start] = error
        left[end:] -= found.spread[start:end, end:].T @ errors
    padded = fold(integers.T, spec)
    short = spec.blocks(width) * spec.block - width
    if short:
        padded = np.array(padded)
        padded[:, -1, spec.block - short :] = steps.zero[:, -1:]
    return padded
