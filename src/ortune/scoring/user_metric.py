"""What a function of the user says about its score by its attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortune.core.errors import BadData
from ortune.core.plugins import user_function
from ortune.scoring.outputs import Floats


def higher_is_better(function: Callable[..., Any] | None) -> bool:
    """Return the function's attribute of that name; True when it has none."""
    return bool(getattr(function, "higher_is_better", True))


def aggregate(function: Callable[..., Any] | None, records: Floats) -> float:
    """Return what the function's attribute ``aggregate`` makes of the records, else the mean.

    It gets an array [samples], or [samples, numbers] when there are several a sample. A NaN among
    the records gives NaN, whatever it would make of it.

    Raises:
        BadData: It fails, or returns no number.
    """
    if not len(records) or np.isnan(records).any():
        return float("nan")
    own = getattr(function, "aggregate", None)
    if own is None:
        return float(records[:, 0].mean())
    try:
        return float(own(records[:, 0] if records.shape[1] == 1 else records))
    except Exception as error:
        raise BadData(
            f"the metric's own aggregate fails: {user_function.reason(error)}",
            fix="return one number for an array of records",
        ) from error
