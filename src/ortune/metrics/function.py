"""The user's own metric: a function of expected outputs, actual outputs and label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortune.core.errors import BadData, BadSettings
from ortune.core.metric import Metric
from ortune.core.plugins import user_function
from ortune.core.session import Tensors
from ortune.scoring import user_metric
from ortune.scoring.outputs import Floats, broken


@dataclass(frozen=True)
class Function(Metric):
    """``fn(expected, actual, label)`` scores one sample; the mean counts.

    It gets two dicts of arrays by output name and the label or None, and returns a number, or
    several when it has an attribute ``aggregate``: a function of what it returned for all samples,
    as an array [samples] or [samples, numbers], that gives the score. An attribute
    ``higher_is_better = False`` turns the direction round.

    Attributes:
        path: ``pkg.module:fn``; importable where ortune runs.
    """

    path: str = ""

    # The direction is the function's, so it is known only when the function is imported.
    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Return the function's attribute of that name; True when it has none.

        Raises:
            BadSettings: The function cannot be imported.
        """
        return user_metric.higher_is_better(self._function())

    def records(
        self,
        expected: Sequence[Tensors],
        actual: Sequence[Tensors],
        labels: Sequence[Any] | None,
    ) -> Floats:
        """Return what the function returned, [samples, numbers]; NaN when outputs are broken.

        Raises:
            BadData: The function fails, or returns something else than numbers.
        """
        function = self._function()
        given = labels if labels is not None else [None] * len(expected)
        rows = zip(expected, actual, given, strict=True)
        return np.array([self._call(function, *row) for row in rows], np.float64)

    def aggregate(self, records: Floats) -> float:
        """Return the mean, or what the function's ``aggregate`` makes of the records."""
        return user_metric.aggregate(self._function(), records)

    def _function(self) -> Callable[..., Any]:
        if not self.path:
            raise BadSettings("the metric 'function' has no path", fix="write pkg.module:fn>=0.9")
        return user_function.function(self.path)

    def _call(
        self, function: Callable[..., Any], expected: Tensors, actual: Tensors, label: Any
    ) -> Floats:
        try:
            given = function(dict(expected), dict(actual), label)
            found = np.asarray(given, np.float64).reshape(-1)
        except Exception as error:
            raise BadData(
                f"{self.path} fails: {user_function.reason(error)}",
                fix="it gets (expected, actual, label) of one sample and returns a number",
            ) from error
        if given is None or not len(found):
            raise BadData(f"{self.path} returned {given!r}", fix="return a number a sample")
        return np.full_like(found, np.nan) if broken(expected, actual, list(expected)) else found
