"""Metrics of fidelity: every sample's outputs against the original's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.metric import Kind, Metric
from ortune.core.plugins import bounds
from ortune.core.session import Tensors
from ortune.metrics.common import groups, outputs

SHARE = 0.95
"""Of the inputs that must keep the limit, where a metric is given none."""


@dataclass(frozen=True)
class Fidelity(Metric):
    """Each sample has a score of its own, and a share of the samples must keep the limit.

    Attributes:
        output: The only output that counts; empty takes all.
        share: Of the samples (of the groups, where there are some) that must keep the limit;
            0 takes the one figure over all samples, which no number of samples proves.
        groups: Parts of the outputs that must each follow the original over all samples,
            ``AXIS:OUTPUT`` each: every place along the axis is one; ``all:OUTPUT`` is one.
            With ``%:`` they are probabilities, judged where they move by more than 0.1.
    """

    added: ClassVar[frozenset[str]] = frozenset({"groups"})
    follows_db: ClassVar[float] = groups.FOLLOWS_DB
    """What a group varies above its noise, at least."""

    output: str = ""
    share: Annotated[float, bounds.SHARE] = SHARE
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_share(self.share, self.name())
        for entry in self.groups:
            groups.parse_group(entry)

    def __str__(self) -> str:
        """Return the command-line spelling, which says ``share=0``."""
        return super().__str__().replace("share=0.0)", "share=0)")

    @property
    def kept_by(self) -> float:
        return self.share

    def kind(self, baseline: NDArray[np.float64] | None = None) -> Kind:
        """Return share, or figure where `share` is 0."""
        return Kind.SHARE if self.share else Kind.FIGURE

    def average_expected(self, expected: Iterable[Tensors]) -> Tensors | None:
        """Return the mean of the outputs where groups are compared with it."""
        return groups.average_outputs(expected) if self.groups else None

    def record_about(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors, mean: Tensors | None
    ) -> float | Sequence[float]:
        """Return the metric's own numbers, those of the groups, and how many those are."""
        record = self.record_with(expected, actual, label, inputs)
        if not self.groups:
            return record
        row = [] if mean is None else groups.measure_groups(self.groups, expected, actual, mean)
        return [*np.atleast_1d(record).tolist(), *row, float(len(row))]

    def find_objection(self, records: NDArray[np.float64]) -> str:
        """Say which group does not follow the original, whatever share of the samples is alike."""
        if not self.groups or not len(records) or not (length := int(records[0, -1])):
            return ""
        return groups.find_unlike_group(self.groups, records[:, -1 - length : -1], self.follows_db)

    def select_outputs(self, expected: Tensors) -> list[str]:
        """Return the names of the outputs that count. Raises BadData: there is no such output."""
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
