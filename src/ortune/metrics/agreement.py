"""How often the outputs decide as the baseline's do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.metric import Kind, sums_to_one
from ortune.core.plugins import bounds
from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.fidelity import Fidelity
from ortune.metrics.common.outputs import Floats


@dataclass(frozen=True)
class Agreement(Fidelity):
    """The share of a sample's positions whose highest score is at the same place of an axis.

    Integer, boolean and text outputs agree where they are equal. Of several outputs the one that
    agrees least counts; float outputs whose axis has one element decide nothing and are left out.
    Where every sample holds one decision, it is how many samples decide the same, and `share` says
    nothing.

    Attributes:
        axis: On which the scores of one position lie: -1 for the last, 1 for the classes of a
            segmentation map [inputs, classes, height, width].
        change: What a probability may change by: where one changes by more the position does not
            agree. 1 allows everything. Scores that do not sum to 1 are taken for logits.
    """

    added: ClassVar[frozenset[str]] = Fidelity.added | {"axis", "change"}
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    axis: Annotated[int, bounds.Bounds(low=-1, high=7)] = -1
    change: Annotated[float, bounds.SHARE] = 1.0

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> tuple[float, float]:
        """Return the share of agreeing positions, and how many decisions there are.

        Raises:
            BadData: No output decides anything.
        """
        names = self.select_outputs(expected)
        if outputs.has_broken_values(expected, actual, names):
            return float("nan"), float("nan")
        deciding = [name for name in names if self._is_deciding(expected[name])]
        if not deciding:
            where = "its last axis" if self.axis == -1 else f"axis {self.axis}"
            raise BadData(
                f"agreement: no output of {', '.join(names)} has classes along {where}",
                fix="use snr or cosine",
            )
        arrays = [expected[name] for name in deciding]
        rows = [
            1 if outputs.is_exact(array) else max(1, array.shape[self.axis]) for array in arrays
        ]
        count = max(array.size // row for array, row in zip(arrays, rows, strict=True))
        least = min(
            compute_agreement(expected, actual, name, self.axis, self.change) for name in deciding
        )
        return least, count

    def kind(self, baseline: Floats | None = None) -> Kind:
        """Return right where every sample holds one decision."""
        single = baseline is not None and len(baseline) > 0 and bool((baseline[:, 1] == 1).all())
        return Kind.RIGHT if single and self.share else super().kind(baseline)

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        return frozenset(
            name for name in self.select_outputs(outputs) if self._is_deciding(outputs[name])
        )

    def _is_deciding(self, array: NDArray[Any]) -> bool:
        has_axis = array.ndim > max(0, self.axis)
        return outputs.is_exact(array) or (has_axis and array.shape[self.axis] != 1)


def compute_agreement(
    expected: Tensors, actual: Tensors, name: str, axis: int = -1, change: float = 1.0
) -> float:
    """Return the share of an output's positions that decide alike; 0 where its shape changed.

    The scores of a position lie on an axis; where the decision is the same, a probability may
    change by so much at most.
    """
    reference, candidate = expected[name], actual.get(name)
    if candidate is None or candidate.shape != reference.shape:
        return 0.0
    if reference.size == 0:
        return 1.0
    if outputs.is_exact(reference):
        return 1 - outputs.count_mismatches(reference, candidate) / reference.size
    if reference.dtype.kind == "c":
        reference, candidate = abs(reference), abs(candidate)
    sides = [np.moveaxis(side.astype(np.float64), axis, -1) for side in (reference, candidate)]
    same = sides[0].argmax(-1) == sides[1].argmax(-1)
    if change < 1:
        if not ((sides[0] >= 0).all() and sums_to_one(sides[0])):  # logits
            sides = [outputs.compute_softmax(side) for side in sides]
        same &= ~(np.abs(sides[0] - sides[1]).max(-1) > change)
    return float(np.mean(same))
