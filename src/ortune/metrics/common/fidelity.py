"""Metrics of fidelity: every sample's outputs against the original's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.metric import Kind, Metric
from ortune.core.plugins import bounds
from ortune.core.session import Tensors
from ortune.metrics.common import outputs

SHARE = 0.95
"""Of the inputs that must keep the limit, where a metric is given none."""


@dataclass(frozen=True)
class Fidelity(Metric):
    """Each sample has a score of its own, and a share of the samples must keep the limit.

    Attributes:
        output: The only output that counts; empty takes all.
        share: Of the samples (of the groups, where there are some) that must keep the limit;
            0 takes the one figure over all samples, which no number of samples proves.
    """

    output: str = ""
    share: Annotated[float, bounds.SHARE] = SHARE

    def __post_init__(self) -> None:
        check_share(self.share, self.name())

    def __str__(self) -> str:
        """Return the command-line spelling, which says ``share=0``."""
        return super().__str__().replace("share=0.0)", "share=0)")

    @property
    def kept_by(self) -> float:
        """The field `share`."""
        return self.share

    def kind(self, baseline: NDArray[np.float64] | None = None) -> Kind:
        """Return share, or figure where `share` is 0."""
        return Kind.SHARE if self.share else Kind.FIGURE

    def select_outputs(self, expected: Tensors) -> list[str]:
        """Return the names of the outputs that count.

        Raises:
            BadData: There is no such output.
        """
        return outputs.select_outputs(expected, self.output)


def check_share(share: float, owner: str) -> float:
    """Return a share that is one.

    Raises:
        BadSettings: It is not within 0 and 1, or is 1, which no number of samples proves.
    """
    if not 0 <= share < 1:
        raise BadSettings(
            f"{owner}: share is {share:g}", fix="give a share of samples from 0 to below 1"
        )
    return share
