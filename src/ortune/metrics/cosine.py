"""Cosine similarity with the baseline's outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.fidelity import Fidelity


@dataclass(frozen=True)
class Cosine(Fidelity):
    """Cosine of the least similar float output of a sample; 1 is the same direction.

    Integer, boolean and text outputs must be equal, else the sample counts 0. With ``share=0`` it
    is the mean over samples.
    """

    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def chance(self, labels: Sequence[Any]) -> float:
        return 0.0

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        names = self.select_outputs(expected)
        if outputs.has_broken_values(expected, actual, names):
            return float("nan")
        return min((_compute_cosine(expected, actual, name) for name in names), default=1.0)


def _compute_cosine(expected: Tensors, actual: Tensors, name: str) -> float:
    """Return that of one output; both sides are scaled first, so that squares cannot overflow."""
    if not outputs.has_same_shape(expected, actual, name):
        return 0.0
    if outputs.is_exact(expected[name]):
        return float(outputs.count_mismatches(expected[name], actual[name]) == 0)
    reference, candidate = outputs.pair_finite(expected[name], actual[name])
    tops = [float(np.max(np.abs(x), initial=0.0)) for x in (reference, candidate)]
    if 0.0 in tops:
        return float(tops[0] == tops[1])
    x, y = reference / tops[0], candidate / tops[1]
    cosine = float(x @ y) / float(np.sqrt((x @ x) * (y @ y)))
    return min(1.0, max(-1.0, cosine))
