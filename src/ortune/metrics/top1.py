"""Top-1 accuracy against labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ortune.core.metric import Metric
from ortune.core.session import Tensors
from ortune.scoring import top_k


@dataclass(frozen=True)
class Top1(Metric):
    """The share of samples whose highest score is the labelled class.

    Attributes:
        output: Output of class scores [..., classes]; empty takes the only one that fits.
    """

    needs_labels: ClassVar[bool] = True

    output: str = ""

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """See `top_k.share`."""
        return top_k.share(expected, actual, label, self.output, 1)
