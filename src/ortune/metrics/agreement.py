"""How often the outputs decide as the baseline's do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.errors import BadData
from ortune.core.metric import Kind
from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.fidelity import Fidelity
from ortune.metrics.common.outputs import Floats


@dataclass(frozen=True)
class Agreement(Fidelity):
    """The share of a sample's positions whose highest score on the last axis is at the same place.

    Integer, boolean and text outputs agree where they are equal. Of several outputs the one that
    agrees least counts; float outputs whose last axis has one element decide nothing and are left
    out. Where every sample holds one decision, it is how many samples decide the same, and `share`
    says nothing.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> tuple[float, float]:
        """Return the share of agreeing positions, and how many decisions there are.

        Raises:
            BadData: No output decides anything.
        """
        names = self.select_outputs(expected)
        if outputs.has_broken_values(expected, actual, names):
            return float("nan"), float("nan")
        deciding = [name for name in names if _is_deciding(expected, name)]
        if not deciding:
            raise BadData(
                f"agreement: no output of {', '.join(names)} has classes along its last axis",
                fix="use snr or cosine",
            )
        arrays = [expected[name] for name in deciding]
        rows = [1 if outputs.is_exact(array) else max(1, array.shape[-1]) for array in arrays]
        count = max(array.size // row for array, row in zip(arrays, rows, strict=True))
        return min(compute_agreement(expected, actual, name) for name in deciding), count

    def kind(self, baseline: Floats | None = None) -> Kind:
        """Return right where every sample holds one decision."""
        single = baseline is not None and len(baseline) > 0 and bool((baseline[:, 1] == 1).all())
        return Kind.RIGHT if single and self.share else super().kind(baseline)

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        return frozenset(
            name for name in self.select_outputs(outputs) if _is_deciding(outputs, name)
        )


def _is_deciding(expected: Tensors, name: str) -> bool:
    array = expected[name]
    return outputs.is_exact(array) or (array.ndim > 0 and array.shape[-1] != 1)


def compute_agreement(expected: Tensors, actual: Tensors, name: str) -> float:
    """Return the share of an output's positions that decide alike; 0 where its shape changed."""
    reference, candidate = expected[name], actual.get(name)
    if candidate is None or candidate.shape != reference.shape:
        return 0.0
    if reference.size == 0:
        return 1.0
    if outputs.is_exact(reference):
        return 1 - outputs.count_mismatches(reference, candidate) / reference.size
    if reference.dtype.kind == "c":
        reference, candidate = abs(reference), abs(candidate)
    same = reference.astype(np.float64).argmax(-1) == candidate.astype(np.float64).argmax(-1)
    return float(np.mean(same))
