"""Spearman's rank correlation of the model's similarities or numbers with scores of people."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.hub import Pooling
from ortune.core.metric import Metric
from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.outputs import Floats, compute_cosines, find_vectors, pool_sentences


@dataclass(frozen=True)
class Spearman(Metric):
    """How alike samples rank by the model and by their labels, which are numbers; 1 is the same.

    The model's number is the cosine of a sample's two sentences, or the only number that it gives.
    It is a figure over all samples, which no number of samples proves: one sample in a hundred
    that is ranked anywhere can move it by 0.06.

    Attributes:
        output: Output of vectors or of a number; empty takes the one that fits.
        pooling: How vectors of tokens become that of a sentence.
    """

    needs_labels: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    reads_inputs: ClassVar[bool] = True

    output: str = ""
    pooling: Pooling = "mean"

    def chance(self, labels: Sequence[Any]) -> float:
        return 0.0

    def record_with(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors
    ) -> Sequence[float]:
        """Return the candidate's number of a sample, the label's, and the baseline's.

        Raises:
            BadData: The label is no number, or the sample holds neither two sentences nor one
                number.
        """
        name = find_vectors(expected, self.output)
        if not isinstance(label, (int, float)):
            raise BadData(f"label {label!r} is no number", fix="give a column score of numbers")
        base = self._compute_number(expected, name, inputs)
        if outputs.has_broken_values(expected, actual, [name]) or not outputs.has_same_shape(
            expected, actual, name
        ):
            return float("nan"), float(label), base
        return self._compute_number(actual, name, inputs), float(label), base

    def _compute_number(self, side: Tensors, name: str, inputs: Tensors) -> float:
        vectors = pool_sentences(side, name, self.pooling, inputs)
        if vectors.size == 1:
            return float(vectors[0, 0])
        if len(vectors) != 2:
            raise BadData(
                f"output '{name}' {list(side[name].shape)} holds neither two sentences nor one "
                "number",
                fix="give two texts a sample: columns text, text_pair and score",
            )
        return float(compute_cosines(vectors[:1], vectors[1:])[0])

    def aggregate_base(self, records: NDArray[np.float64]) -> float:
        """Return the correlation of the baseline's numbers."""
        return self.aggregate(records[:, [2, 1]])

    def aggregate(self, records: NDArray[np.float64]) -> float:
        """Return the correlation of the ranks; 0 where one side has one value alone."""
        if not len(records) or np.isnan(records).any():
            return float("nan")
        first, second = (_rank(column) for column in records.T[:2])
        spread = float(np.sqrt((first @ first) * (second @ second)))
        return float(first @ second) / spread if spread else 0.0

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        return frozenset([find_vectors(outputs, self.output)])


def _rank(values: Floats) -> Floats:
    """Return the ranks of values less their mean; equal ones share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place.reshape(-1)]
    return np.asarray(ranks - ranks.mean(), np.float64)
