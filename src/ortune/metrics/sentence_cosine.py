"""Cosine similarity of sentences' vectors with the baseline's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ortune.core.hub import Pooling
from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.fidelity import Fidelity
from ortune.metrics.common.outputs import compute_cosines, find_vectors, pool_sentences


@dataclass(frozen=True)
class SentenceCosine(Fidelity):
    """Cosine of the least similar sentence of a sample, its tokens' vectors pooled to one.

    Attributes:
        pooling: How vectors of tokens become that of a sentence.
    """

    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    reads_inputs: ClassVar[bool] = True

    pooling: Pooling = "mean"

    def chance(self, labels: Sequence[Any]) -> float:
        return 0.0

    def record_with(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors
    ) -> float:
        """Return a cosine in [-1, 1]; all tokens count where no mask is among the inputs.

        Raises:
            BadData: No output holds vectors.
        """
        name = find_vectors(expected, self.output)
        if outputs.has_broken_values(expected, actual, [name]):
            return float("nan")
        if not outputs.has_same_shape(expected, actual, name):
            return 0.0
        first, second = (
            pool_sentences(side, name, self.pooling, inputs) for side in (expected, actual)
        )
        return float(compute_cosines(first, second).min())

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        return frozenset([find_vectors(outputs, self.output)])
