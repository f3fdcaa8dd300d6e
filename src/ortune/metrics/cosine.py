"""Cosine similarity with the baseline's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.metric import Metric
from ortune.core.session import Tensors
from ortune.scoring import outputs
from ortune.scoring.outputs import Floats


@dataclass(frozen=True)
class Cosine(Metric):
    """Mean over samples of the cosine of the least similar float output; 1 is the same direction.

    Integer, boolean and text outputs must be equal, else the sample counts 0.

    Attributes:
        output: The only output that counts; empty takes all.
    """

    continuous: ClassVar[bool] = True

    output: str = ""

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """Return a cosine in [-1, 1]."""
        names = outputs.chosen(expected, self.output)
        if outputs.broken(expected, actual, names):
            return float("nan")
        return min((_similar(expected, actual, name) for name in names), default=1.0)


def _similar(expected: Tensors, actual: Tensors, name: str) -> float:
    if not outputs.alike(expected, actual, name):
        return 0.0
    if outputs.is_exact(expected[name]):
        return float(outputs.mismatches(expected[name], actual[name]) == 0)
    return _cosine(*outputs.pair(expected[name], actual[name]))


def _cosine(one: Floats, two: Floats) -> float:
    """Both are scaled by their largest value first, so that squares cannot overflow."""
    tops = [float(np.max(np.abs(x), initial=0.0)) for x in (one, two)]
    if 0.0 in tops:
        return float(tops[0] == tops[1])
    x, y = one / tops[0], two / tops[1]
    found = float(x @ y) / float(np.sqrt((x @ x) * (y @ y)))
    return min(1.0, max(-1.0, found))
