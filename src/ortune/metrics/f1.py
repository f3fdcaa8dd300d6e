"""F1 of a classifier, of texts or of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ortune.core.metric import Metric
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.top_k import find_scores, read_row_labels


@dataclass(frozen=True)
class F1(Metric):
    """F1 over all samples, a figure: of all decisions together, or the mean of the classes'.

    Labels below 0 are not scored: special tokens, and ends of words.

    Attributes:
        output: Output of class scores [..., classes]; empty takes the only one that fits.
        average: ``micro`` counts all decisions together, ``macro`` is the mean of the classes.
        without: A class that is none, such as the ``O`` of tokens; -1 counts all.
    """

    needs_labels: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    output: str = ""
    average: Literal["micro", "macro"] = "micro"
    without: Annotated[int, Bounds(-1)] = -1

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> Sequence[float]:
        """Return hits, decisions and labels of each class, one after the other.

        Raises:
            BadData: No output fits, or the labels do not fit it.
        """
        name = self.output or find_scores(expected, 1)
        classes, labels = expected[name].shape[-1], read_row_labels(expected, name, label)
        count = len(labels)
        if outputs.has_broken_values(expected, actual, [name]):
            return [float("nan")] * (3 * classes)
        scored = labels >= 0
        decided = np.full(count, -1)
        if outputs.has_same_shape(expected, actual, name):
            decided = actual[name].reshape(count, classes).argmax(-1)
        groups = (labels[scored & (labels == decided)], decided[scored], labels[scored])
        columns = [np.bincount(group[group >= 0], minlength=classes) for group in groups]
        return [float(n) for n in np.concatenate([column[:classes] for column in columns])]

    def aggregate(self, records: NDArray[np.float64]) -> float:
        """Return the figure; NaN where an answer is broken or nothing is labelled."""
        hits, decided, labelled = records.sum(0).reshape(3, -1)
        kept = [number for number in range(len(hits)) if number != self.without]
        hits, sums = hits[kept], (decided + labelled)[kept]
        if np.isnan(sums).any() or not sums.any():
            return float("nan")
        if self.average == "micro":
            return float(2 * hits.sum() / sums.sum())
        return float((2 * hits[sums > 0] / sums[sums > 0]).mean())

    def each(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return each sample's own; 1 where nothing is labelled and nothing found."""
        scores = np.array([self.aggregate(row[None]) for row in records])
        quiet = np.isnan(scores) & ~np.isnan(records).any(1)
        return np.where(quiet, 1.0, scores)

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        return frozenset([self.output or find_scores(outputs, 1)])
