"""How far an exported file's answers are from PyTorch's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.session import Tensors

FLOAT32, SHORT = 1e-4, 1e-2
"""Largest error of float32 and of 16-bit outputs, as a share of an output's largest value:
float32 sums in another order differ by some 1e-6 a layer."""


def tolerance(expected: Tensors) -> float:
    """Return the largest error that rounding alone may make."""
    kinds = {array.dtype for array in expected.values()}
    return SHORT if np.dtype(np.float16) in kinds else FLOAT32


def difference(expected: Tensors, found: Tensors) -> tuple[float, str]:
    """Return the largest error of any output, and what is wrong with that output.

    The error is a share of the output's largest value; infinite where shapes or types differ,
    where one side is not finite alone, or where whole numbers are not equal.
    """
    return max(
        (_error(name, wanted, found.get(name)) for name, wanted in expected.items()),
        default=(0.0, ""),
    )


def _error(
    name: str, wanted: NDArray[np.generic], found: NDArray[np.generic] | None
) -> tuple[float, str]:
    if found is None:
        return np.inf, f"'{name}' is missing"
    if wanted.shape != found.shape:
        return np.inf, f"'{name}' has the shape {found.shape}, not {wanted.shape}"
    if wanted.dtype != found.dtype:
        return np.inf, f"'{name}' is {found.dtype}, not {wanted.dtype}"
    if wanted.dtype.kind != "f":
        other = int((wanted != found).sum())
        values = wording.count(wanted.size, "value")
        return (np.inf if other else 0.0), f"'{name}' differs in {other} of {values}"
    one, two = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if not (
        np.array_equal(one[~finite], two[~finite], equal_nan=True)
        and np.isfinite(two[finite]).all()
    ):
        return np.inf, f"'{name}' is not finite where PyTorch is, or the other way round"
    off = float(np.abs(one[finite] - two[finite]).max(initial=0))
    peak = float(np.abs(one[finite]).max(initial=0))
    error = off / peak if peak else off
    return error, f"'{name}' is off by {error:.2g} of its largest value"
