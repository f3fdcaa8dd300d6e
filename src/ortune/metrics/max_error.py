"""The largest difference to the baseline's outputs."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.fidelity import Fidelity


@dataclass(frozen=True)
class MaxError(Fidelity):
    """The largest absolute difference of any element of a sample, in the outputs' units.

    Text that differs counts 1. With ``share=0`` it is the largest of all samples.
    """

    higher_is_better: ClassVar[bool] = False

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """Return the largest difference; NaN also where an output changed its shape."""
        names = self.select_outputs(expected)
        if outputs.has_broken_values(expected, actual, names) or not all(
            outputs.has_same_shape(expected, actual, name) for name in names
        ):
            return float("nan")
        largest = 0.0
        for reference, candidate in ((expected[name], actual[name]) for name in names):
            if reference.dtype.kind in "iub":
                wide = np.longdouble if reference.dtype.itemsize == 8 else np.float64
                off = np.abs(reference.astype(wide) - candidate.astype(wide))
            elif outputs.is_exact(reference):
                off = np.array(outputs.count_mismatches(reference, candidate) > 0)
            else:
                lhs, rhs = outputs.pair_finite(reference, candidate)
                off = np.abs(lhs - rhs)
            largest = max(largest, float(np.max(off, initial=0.0)))
        return largest

    def aggregate(self, records: outputs.Floats) -> float:
        return float(records[:, 0].max()) if len(records) else float("nan")
