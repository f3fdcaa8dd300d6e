"""Top-1 accuracy against labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortune.core.session import Tensors
from ortune.metrics.common import top_k
from ortune.metrics.common.top_k import TopK


@dataclass(frozen=True)
class Top1(TopK):
    """The share of samples whose highest score is the labelled class."""

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """See `top_k.share`."""
        return top_k.score_top_k(expected, actual, label, self.output, 1)
