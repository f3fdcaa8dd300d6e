"""The largest difference to the baseline's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.session import Tensors
from ortune.scoring import outputs
from ortune.scoring.fidelity import Fidelity
from ortune.scoring.outputs import Floats


@dataclass(frozen=True)
class MaxError(Fidelity):
    """The largest absolute difference of any element of a sample, in the outputs' units.

    Text that differs counts 1. With ``share=0`` it is the largest of all samples.
    """

    higher_is_better: ClassVar[bool] = False

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """Return the largest difference; NaN also where an output changed its shape."""
        names = self.chosen(expected)
        if outputs.broken(expected, actual, names) or not all(
            outputs.alike(expected, actual, name) for name in names
        ):
            return float("nan")
        return max((_difference(expected, actual, name) for name in names), default=0.0)

    def aggregate(self, records: Floats) -> float:
        """Return the worst sample's difference."""
        return float(records[:, 0].max()) if len(records) else float("nan")


def _difference(expected: Tensors, actual: Tensors, name: str) -> float:
    one, two = expected[name], actual[name]
    if one.dtype.kind in "iub":
        wide = np.longdouble if one.dtype.itemsize == 8 else np.float64
        return float(np.max(np.abs(one.astype(wide) - two.astype(wide)), initial=0.0))
    if outputs.is_exact(one):
        return float(outputs.mismatches(one, two) > 0)
    left, right = outputs.pair(one, two)
    return float(np.max(np.abs(left - right), initial=0.0))
