"""What the metrics share: which outputs are compared, and when they cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, suggest_names
from ortune.core.session import Tensors

Floats = NDArray[np.float64]


def select_outputs(tensors: Tensors, output: str) -> list[str]:
    """Return the output of that name, or all for an empty name.

    Raises:
        BadData: There is no such output.
    """
    if output and output not in tensors:
        raise BadData(f"the model has no output '{output}'", fix=suggest_names(output, tensors))
    return [output] if output else list(tensors)


def is_exact(array: NDArray[Any]) -> bool:
    """Say whether values are integers, booleans or text: things that are equal or not."""
    return array.dtype.kind in "iubUSOTM"


def to_floats(array: NDArray[Any]) -> Floats:
    """Return the values as float64 [elements]; complex ones as real and imaginary parts."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128).reshape(-1).view(np.float64)
    return array.astype(np.float64).reshape(-1)


def compute_softmax(logits: NDArray[Any]) -> Floats:
    """Return shares along the last axis that add up to 1, float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float64)


def has_same_shape(expected: Tensors, actual: Tensors, name: str) -> bool:
    """Say whether the candidate has an output in the shape that it should have."""
    return name in actual and actual[name].shape == expected[name].shape


def has_broken_values(expected: Tensors, actual: Tensors, names: list[str]) -> bool:
    """Say whether the candidate has NaN or infinity where the baseline does not have the same."""
    for name in names:
        if name not in actual or is_exact(actual[name]):
            continue
        values = to_floats(actual[name])
        bad = ~np.isfinite(values)
        if not has_same_shape(expected, actual, name) or is_exact(expected[name]):
            if bad.any():
                return True
            continue
        reference = to_floats(expected[name])
        bad |= ~np.isfinite(reference)
        if bad.any() and not np.array_equal(values[bad], reference[bad], equal_nan=True):
            return True
    return False


def pair_finite(expected: NDArray[Any], actual: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return both as float64 [elements], without positions at which both are not finite."""
    first, second = to_floats(expected), to_floats(actual)
    fine = np.isfinite(first) & np.isfinite(second)
    return (first, second) if fine.all() else (first[fine], second[fine])


def count_mismatches(expected: NDArray[Any], actual: NDArray[Any]) -> int:
    """Count the positions at which two arrays of one shape are not equal."""
    return int(np.count_nonzero(np.asarray(expected != actual)))
