"""Metrics: a variant's outputs against labels or against the baseline's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.plugins.plugin import Plugin
from ortune.core.session import Tensors


@dataclass(frozen=True)
class Metric(Plugin):
    """Pure functions of outputs: one record a sample, one number over all records.

    Attributes:
        higher_is_better: Direction.
        needs_labels: Scored against labels; otherwise against the baseline's outputs.
        worst_case: The aggregate is the worst sample, so a mean's interval does not apply.
        continuous: A record of exactly 1 means equal outputs, not one success of a yes-or-no.
    """

    folder: ClassVar[str] = "metrics"
    higher_is_better: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False
    worst_case: ClassVar[bool] = False
    continuous: ClassVar[bool] = False

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float | Sequence[float]:
        """Return the number of one sample, or its numbers; NaN when the outputs are broken.

        Args:
            expected: The baseline's outputs.
            actual: The candidate's outputs, same names.
            label: None where there are no labels.

        Raises:
            BadData: The outputs or the label cannot be scored.
        """
        raise NotImplementedError

    def records(
        self,
        expected: Sequence[Tensors],
        actual: Sequence[Tensors],
        labels: Sequence[Any] | None,
    ) -> NDArray[np.float64]:
        """Return one row of numbers a sample, shape [samples, k].

        Raises:
            BadData: Labels are needed and not given, or a sample cannot be scored.
        """
        if labels is None and self.needs_labels:
            raise BadData(
                f"{self.name()} needs labels", fix="give an array 'label', or --labels FILE"
            )
        given = [None] * len(expected) if labels is None else labels
        rows = [self.record(*one) for one in zip(expected, actual, given, strict=True)]
        return np.array(rows, np.float64).reshape(len(rows), -1 if rows else 1)

    def aggregate(self, records: NDArray[np.float64]) -> float:
        """Return the score over records [samples, k]; the mean of the first column by default."""
        return float(records[:, 0].mean()) if len(records) else float("nan")

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        """Return the names of the outputs that the score depends on.

        Args:
            outputs: The baseline's, of one sample.
            label: None where there are no labels.
        """
        output = getattr(self, "output", "")
        return frozenset([output] if output else outputs)
