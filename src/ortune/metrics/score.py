"""The score of an ``--evaluate`` function, which runs the model itself."""

from dataclasses import dataclass
from typing import Any

from ortune.core.errors import BadData
from ortune.core.session import Tensors
from ortune.metrics.common.user_metric import UserMetric


@dataclass(frozen=True)
class EvaluateScore(UserMetric):
    """The mean of the records that an evaluate function returned, or its ``aggregate`` of them.

    Attributes:
        path: The evaluate function, ``FILE.py:NAME``; empty takes the mean, higher being better.
    """

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """Refuse: outputs alone do not make this score."""
        raise BadData(
            "the metric 'score' needs --evaluate",
            fix="give --evaluate FILE.py:NAME, or a metric of the outputs",
        )
