"""How often the outputs decide as the baseline's do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortune.core.errors import BadData
from ortune.core.metric import Metric
from ortune.core.session import Tensors
from ortune.scoring import outputs


@dataclass(frozen=True)
class Agreement(Metric):
    """The share of positions whose highest score along the last axis is at the same place.

    Integer, boolean and text outputs agree where they are equal. Of several outputs the one that
    agrees least counts; float outputs whose last axis has one element decide nothing and are left
    out.

    Attributes:
        output: The only output that counts; empty takes all.
    """

    output: str = ""

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """Return the share of agreeing positions.

        Raises:
            BadData: No output decides anything.
        """
        names = outputs.chosen(expected, self.output)
        if outputs.broken(expected, actual, names):
            return float("nan")
        deciding = [name for name in names if _decides(expected, name)]
        if not deciding:
            raise BadData(
                f"agreement: no output of {', '.join(names)} has classes along its last axis",
                fix="use snr or cosine",
            )
        return min(_agree(expected, actual, name) for name in deciding)


def _decides(expected: Tensors, name: str) -> bool:
    array = expected[name]
    return outputs.is_exact(array) or (array.ndim > 0 and array.shape[-1] != 1)


def _agree(expected: Tensors, actual: Tensors, name: str) -> float:
    one, two = expected[name], actual.get(name)
    if two is None or two.shape != one.shape:
        return 0.0
    if one.size == 0:
        return 1.0
    if outputs.is_exact(one):
        return 1 - outputs.mismatches(one, two) / one.size
    if one.dtype.kind == "c":
        one, two = abs(one), abs(two)
    same = one.astype(np.float64).argmax(-1) == two.astype(np.float64).argmax(-1)
    return float(np.mean(same))
