"""Perplexity of a model that predicts tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.metric import Metric
from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.top_k import read_row_labels


@dataclass(frozen=True)
class Perplexity(Metric):
    """Exponential of the mean surprise, in nats, at each next token of all texts together.

    It is a figure, likely at best: the surprise at one token has no bound.

    Attributes:
        output: Output of logits [..., words].
    """

    higher_is_better: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = True

    output: str = "logits"

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> Sequence[float]:
        """Return the sum of the candidate's surprise, how many tokens, and the baseline's sum.

        Raises:
            BadData: There is no such output, or the labels do not fit it.
        """
        (name,) = outputs.select_outputs(expected, self.output)
        labels = read_row_labels(expected, name, label)
        count, base = int((labels >= 0).sum()), _sum_surprise(expected[name], labels)
        broken = outputs.has_broken_values(expected, actual, [name])
        if broken or not outputs.has_same_shape(expected, actual, name):
            return float("nan"), count, base
        return _sum_surprise(actual[name], labels), count, base

    def aggregate(self, records: NDArray[np.float64]) -> float:
        """Return the perplexity; NaN where an answer is broken or no token is labelled."""
        surprise, count = records[:, :2].sum(0)
        return float(np.exp(surprise / count)) if count else float("nan")

    def aggregate_base(self, records: NDArray[np.float64]) -> float:
        """Return the baseline's perplexity."""
        return self.aggregate(records[:, [2, 1]])

    def each(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return each text's own; 1 where it has no next token."""
        return np.asarray(np.exp(records[:, 0] / np.maximum(records[:, 1], 1)), np.float64)

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        """Return the logits."""
        return frozenset([self.output])


def _sum_surprise(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the sum of minus the logarithm of the labelled tokens' shares."""
    scored = labels >= 0
    rows = logits.reshape(len(labels), -1)[scored].astype(np.float64)
    rows -= rows.max(-1, keepdims=True, initial=-np.inf)
    chosen = rows[np.arange(len(rows)), labels[scored]]
    return float((np.log(np.exp(rows).sum(-1)) - chosen).sum())
