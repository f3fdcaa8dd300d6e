"""Top-1 accuracy against labels."""

from dataclasses import dataclass
from typing import ClassVar

from ortune.metrics.common.top_k import TopK


@dataclass(frozen=True)
class Top1(TopK):
    """The share of samples whose highest score is the labelled class."""

    k: ClassVar[int] = 1
