"""Records as they come from a worker, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData


def table(rows: Sequence[Sequence[float]], count: int | None = None) -> NDArray[np.float64]:
    """Return per-sample records as an array [samples, k].

    Args:
        count: How many there must be; None takes any number.

    Raises:
        BadData: Rows differ in length, or there are more or fewer than `count`.
    """
    if count is not None and len(rows) != count:
        raise BadData(
            f"{len(rows)} records came back, {count} from the original",
            fix="return one record a sample, whatever the outputs are",
        )
    if len({len(row) for row in rows}) > 1:
        raise BadData("records differ in length", fix="return the same numbers for every sample")
    return np.asarray(rows, np.float64).reshape(len(rows), len(rows[0]) if rows else 1)
