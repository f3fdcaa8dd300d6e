"""Metrics whose score a function of the user's makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortune.core.errors import BadData
from ortune.core.metric import Metric
from ortune.core.plugins import user_function
from ortune.scoring.outputs import Floats


@dataclass(frozen=True)
class UserMetric(Metric):
    """Its direction and how it sums up are attributes of the function.

    ``higher_is_better = False`` turns the direction round. ``aggregate``, a function of the
    records as an array [samples] or [samples, numbers], gives the score in place of the mean.

    Attributes:
        path: ``pkg.module:fn``; importable where ortune runs.
    """

    path: str = ""

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function; None where none is named.

        Raises:
            BadSettings: It cannot be imported.
        """
        return user_function.function(self.path) if self.path else None

    # The direction is the function's, so it is known only when the function is imported.
    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """The function's attribute of that name; True when it has none."""
        return bool(getattr(self.function, "higher_is_better", True))

    def aggregate(self, records: Floats) -> float:
        """Return the mean, or what the function's ``aggregate`` makes of the records.

        A NaN among the records gives NaN, whatever it would make of it.

        Raises:
            BadData: It fails, or returns no number.
        """
        if not len(records) or np.isnan(records).any():
            return float("nan")
        own = getattr(self.function, "aggregate", None)
        if own is None:
            return super().aggregate(records)
        try:
            return float(own(records[:, 0] if records.shape[1] == 1 else records))
        except Exception as error:
            raise BadData(
                f"the metric's own aggregate fails: {user_function.reason(error)}",
                fix="return one number for an array of records",
            ) from error
