"""Metrics of one kind each, and records of them."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.budget import Budget
from ortune.core.metric import Metric

COSINE = Budget.parse("cosine>=0.999")
TOP1 = Budget.parse("top1>=base-0.01")


@dataclass(frozen=True)
class Mean(Metric):
    """Of records from 0 to 1, unless nothing is known of them."""

    known: tuple[float, float] | None = (0.0, 1.0)

    @property
    def bounds(self) -> tuple[float, float] | None:
        return self.known


@dataclass(frozen=True)
class Cost(Mean):
    """Lower is better."""

    higher_is_better: ClassVar[bool] = False


@dataclass(frozen=True)
class Figure(Mean):
    """The root of a mean: no mean itself, though its records have bounds."""

    def aggregate(self, records: Any) -> float:
        return math.sqrt(float(records[:, 0].mean())) if len(records) else math.nan


def column(values: object) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(-1, 1)


def like(records: np.ndarray, value: float = 1.0) -> np.ndarray:
    return np.full_like(records, value)
