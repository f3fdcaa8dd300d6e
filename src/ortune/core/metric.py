"""Metrics: a variant's outputs against labels or against the baseline's outputs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.plugins.plugin import Plugin
from ortune.core.session import Tensors


class Kind(enum.StrEnum):
    """What a metric's score is of many samples, and so what samples can prove of it.

    ``docs/accuracy.md`` has the tests and their sources.

    * ``share``: what a share of the samples keep; an exact binomial test.
    * ``right``: how many samples are right, yes or no; exact tests.
    * ``mean``: the mean of the records; proved only where their bounds are known.
    * ``figure``: any other number over all samples; never proved.
    """

    SHARE = "share"
    RIGHT = "right"
    MEAN = "mean"
    FIGURE = "figure"


@dataclass(frozen=True)
class Metric(Plugin):
    """Pure functions of outputs: one record a sample, one number over all records.

    Attributes:
        higher_is_better: Direction.
        needs_labels: Scored against labels; otherwise against the baseline's outputs.
        decibels: The score is a logarithm already, 20 of an amplitude.
    """

    folder: ClassVar[str] = "metrics"
    higher_is_better: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False
    decibels: ClassVar[bool] = False

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
        """Return the figure over records [samples, k]; the mean of the first column by default."""
        return float(records[:, 0].mean()) if len(records) else float("nan")

    def each(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the score of every sample by itself, shape [samples]; NaN where it is broken."""
        return records[:, 0]

    @property
    def kept_by(self) -> float:
        """The share of samples that must keep a budget's limit; 0 where another kind counts."""
        return 0.0

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the largest that a record can be; None where that is unknown."""
        return None

    def kind(self, baseline: NDArray[np.float64] | None = None) -> Kind:
        """Return what the score is, given the baseline's records [samples, k] where they matter.

        An ``aggregate`` of the metric's own is no mean, so that such a metric is a figure.
        """
        if self.kept_by:
            return Kind.SHARE
        own = type(self).aggregate is not Metric.aggregate
        return Kind.FIGURE if own else Kind.MEAN

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        """Return the names of the outputs that the score depends on.

        Args:
            outputs: The baseline's, of one sample.
            label: None where there are no labels.
        """
        output = getattr(self, "output", "")
        return frozenset([output] if output else outputs)
