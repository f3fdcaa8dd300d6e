"""Classes with the highest scores in the place of scores, as Triton writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.protocol.datatypes import datatype
from ortune.protocol.status import Refused


def classify(
    array: NDArray[Any], classes: int, labels: Sequence[str] = (), *, batched: bool = True
) -> NDArray[Any]:
    """Return ``score:index`` or ``score:index:label`` of the highest scores of each row.

    Of equal scores the lower index comes first; NaN comes last.

    Args:
        array: Scores, a row of the first dimension each; without `batched` all are one row.
        classes: How many of each row at most.
        labels: Names by index; none beyond the last.

    Returns:
        Object array of ``bytes``: [rows, classes], or [classes] without `batched`.

    Raises:
        Refused: The output is no numbers.
    """
    kind = datatype(array.dtype)
    if kind in ("BYTES", "BOOL"):
        raise Refused(f"class result not available for output due to unsupported type '{kind}'")
    batched = batched and array.ndim > 0
    rows = len(array) if batched else 1
    width = math.prod(array.shape[1:] if batched else array.shape)
    scores = array.reshape(rows, width)
    if kind[0] in "FB":
        scores = scores.astype(np.float64)
    made = np.empty((rows, min(classes, width)), object)
    for row, values in zip(made, scores, strict=True):
        row[:] = [
            _written(values[index], int(index), labels)
            for index in _order(values)[: min(classes, width)]
        ]
    return made if batched else made[0]


def _order(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the indices of values from the highest."""
    known = np.where(np.isnan(values), -np.inf, values) if values.dtype.kind == "f" else values
    return len(values) - 1 - np.argsort(known[::-1], kind="stable")[::-1]


def _written(score: Any, index: int, labels: Sequence[str]) -> bytes:
    """Write a score as C++'s ``std::to_string``: six decimals."""
    value = f"{score:f}" if isinstance(score, np.floating) else str(score)
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{value}:{index}{label}".encode()
