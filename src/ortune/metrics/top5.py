"""Top-5 accuracy against labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ortune.core.metric import Metric
from ortune.core.session import Tensors
from ortune.scoring import top_k
from ortune.scoring.outputs import Floats


@dataclass(frozen=True)
class Top5(Metric):
    """The share of samples whose labelled class is among the five highest scores.

    Attributes:
        output: Output of class scores [..., classes]; empty takes the only one that fits.
    """

    needs_labels: ClassVar[bool] = True

    output: str = ""

    def records(
        self,
        expected: Sequence[Tensors],
        actual: Sequence[Tensors],
        labels: Sequence[Any] | None,
    ) -> Floats:
        """Return 0 or 1 a sample, a share where a sample has several labels; NaN when broken.

        Raises:
            BadData: There are no labels, or they do not fit the output.
        """
        return top_k.records(expected, actual, labels, self.output, 5)
