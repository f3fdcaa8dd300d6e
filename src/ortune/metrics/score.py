"""The score of an ``--evaluate`` function, which runs the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ortune.core.errors import BadData
from ortune.core.metric import Metric
from ortune.core.plugins import user_function
from ortune.core.session import Tensors
from ortune.scoring import user_metric
from ortune.scoring.outputs import Floats


@dataclass(frozen=True)
class Score(Metric):
    """The mean of the records that an evaluate function returned.

    The function may have attributes: ``aggregate``, a function of the records as an array
    [samples] or [samples, numbers] that gives the score, and ``higher_is_better``.

    Attributes:
        path: The evaluate function, ``pkg.module:fn``; empty takes the mean, higher being better.
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
        """Refuse: outputs alone do not make this score.

        Raises:
            BadData: Always.
        """
        raise BadData(
            "the metric 'score' needs a function that runs the model",
            fix="give --evaluate pkg.module:fn, or a metric of the outputs",
        )

    def aggregate(self, records: Floats) -> float:
        """Return the mean, or what the function's ``aggregate`` makes of the records."""
        return user_metric.aggregate(self._function(), records)

    def _function(self) -> Callable[..., Any] | None:
        return user_function.function(self.path) if self.path else None
