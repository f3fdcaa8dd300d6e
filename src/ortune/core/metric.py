"""Metrics: a variant's outputs against labels or against the baseline's outputs."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.plugins.plugin import Plugin
from ortune.core.session import Tensors

UNIT_TOLERANCE = 2e-3
"""For sums and lengths of 1: float16 has 11 bits."""


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
        ragged: Records of samples differ in length; a table fills them up with NaN behind.
    """

    folder: ClassVar[str] = "metrics"
    higher_is_better: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False
    decibels: ClassVar[bool] = False
    ragged: ClassVar[bool] = False

    @property
    def reads_inputs(self) -> bool:
        """Whether `record_with` looks at the sample's inputs."""
        return False

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float | Sequence[float]:
        """Return the number of one sample, or its numbers; NaN when the outputs are broken.

        Args:
            expected: The baseline's outputs.
            actual: The candidate's outputs, same names.
            label: None where there are no labels.

        Raises:
            BadData: The outputs or the label cannot be scored.
        """
        if type(self).record_with is Metric.record_with:
            raise NotImplementedError
        return self.record_with(expected, actual, label, {})

    def record_with(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors
    ) -> float | Sequence[float]:
        """Return what `record` does, knowing the sample's inputs: none where nobody has them."""
        return self.record(expected, actual, label)

    def average_expected(self, expected: Iterable[Tensors]) -> Tensors | None:
        """Return what `record_about` is to know of all samples' outputs; None of most metrics.

        Args:
            expected: The baseline's outputs, read only where they are needed.
        """
        return None

    def record_about(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors, mean: Tensors | None
    ) -> float | Sequence[float]:
        """Return what `record_with` does, knowing what `average_expected` returned."""
        return self.record_with(expected, actual, label, inputs)

    def find_objection(self, records: NDArray[np.float64]) -> str:
        """Say why no score of these records [samples, k] is within a budget; mostly nothing."""
        return ""

    def records(
        self,
        expected: Sequence[Tensors],
        actual: Sequence[Tensors],
        labels: Sequence[Any] | None,
        inputs: Sequence[Tensors] | None = None,
        mean: Tensors | None = None,
    ) -> NDArray[np.float64]:
        """Return one row of numbers a sample, shape [samples, k].

        Args:
            inputs: Of the samples, for a metric that `reads_inputs`.
            mean: What `average_expected` returned of all samples that are judged together.

        Raises:
            BadData: Labels are needed and not given, or a sample cannot be scored.
        """
        if labels is None and self.needs_labels:
            raise BadData(
                f"{self.name()} needs labels", fix="give an array 'label', or --labels FILE"
            )
        sample_labels = [None] * len(expected) if labels is None else labels
        fed = [{}] * len(expected) if inputs is None else inputs
        rows = [
            self.record_about(*sample, mean)
            for sample in zip(expected, actual, sample_labels, fed, strict=True)
        ]
        return self.table(rows).reshape(len(rows), -1 if rows else 1)

    def table(self, rows: Sequence[float | Sequence[float]]) -> NDArray[np.float64]:
        """Return rows of numbers as an array [samples, k], see `ragged`."""
        if not self.ragged:
            return np.array(rows, np.float64)
        return stack_records([np.array(row, np.float64).reshape(1, -1) for row in rows])

    def aggregate(self, records: NDArray[np.float64]) -> float:
        """Return the figure over records [samples, k]; the mean of the first column by default."""
        return float(records[:, 0].mean()) if len(records) else float("nan")

    def aggregate_base(self, records: NDArray[np.float64]) -> float:
        """Return the baseline's figure where another side's records hold it; else NaN."""
        return float("nan")

    def each(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the score of every sample by itself, shape [samples]; NaN where it is broken."""
        return records[:, 0]

    @property
    def kept_by(self) -> float:
        """The share of samples that must keep a budget's limit; 0 where another kind counts."""
        return 0.0

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the largest that one sample's score can be; None where that is unknown."""
        return None

    def chance(self, labels: Sequence[Any]) -> float | None:
        """Return what the best answer that is the same for all samples scores; None if unknown."""
        return None

    def kind(self, baseline: NDArray[np.float64] | None = None) -> Kind:
        """Return what the score is, given the baseline's records [samples, k] where they matter.

        An ``aggregate`` of the metric's own is no mean, so that such a metric is a figure.
        """
        if self.kept_by:
            return Kind.SHARE
        is_overridden = type(self).aggregate is not Metric.aggregate
        return Kind.FIGURE if is_overridden else Kind.MEAN

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        """Return the names of the outputs that the score depends on.

        Args:
            outputs: The baseline's, of one sample.
            label: None where there are no labels.
        """
        output = getattr(self, "output", "")
        return frozenset([output] if output else outputs)


def stack_records(tables: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return tables of records [samples, k] below each other, filled up to one width with NaN."""
    if not tables:
        return np.zeros((0, 1))
    widest = max(table.shape[1] for table in tables)
    stacked = np.full((sum(map(len, tables)), widest), np.nan)
    at = 0
    for table in tables:
        stacked[at : at + len(table), : table.shape[1]] = table
        at += len(table)
    return stacked


def sums_to_one(scores: NDArray[Any], axis: int = -1) -> bool:
    """Whether scores sum to 1 along an axis everywhere, to what float16's 11 bits leave of it."""
    total = scores.sum(axis, dtype=np.float64)
    return bool(np.allclose(total, 1, rtol=0, atol=UNIT_TOLERANCE))
