"""Top-5 accuracy against labels."""

from dataclasses import dataclass
from typing import ClassVar

from ortune.metrics.common.top_k import TopK


@dataclass(frozen=True)
class Top5(TopK):
    """The share of samples whose labelled class is among the five highest scores."""

    k: ClassVar[int] = 5
