"""Rows of scores in order, and the one that is best beyond the noise, if there is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.core.metric import Kind, Metric
from ortune.core.trial import Score
from ortune.measurement.accuracy import judge
from ortune.metrics.snr import Snr
from ortune.scoring.fidelity import Fidelity

Records = NDArray[np.float64]


@dataclass(frozen=True)
class ObserverScore:
    """One way of calibrating.

    Attributes:
        augment: Spelled; empty for the samples as they are.
        seconds: That its calibration took.
        score: By the budget's metric, against the float model.
        snr: dB against the float model's outputs.
        standing: ``best``, ``not worse`` (within the noise of the first), ``lower snr`` (the
            metric cannot tell), ``worse`` or ``failed``.
        error: Why there is no score.
    """

    observer: str
    augment: str
    seconds: float = 0.0
    score: Score | None = None
    snr: float | None = None
    standing: str = "failed"
    error: str = ""
    records: tuple[Records, Records] | None = field(default=None, repr=False, compare=False)


def rank(
    rows: Sequence[ObserverScore], budget: Budget, groups: Sequence[str] | None
) -> tuple[list[ObserverScore], str, str]:
    """Order rows and name the one that beats all others in the paired test, at 95 %.

    The budget's metric decides; rows that it cannot tell apart are asked for their SNR.

    Returns:
        The rows with their standing, the best one's name (empty when there is none), and the
        metric by which it is.
    """
    scored = [row for row in rows if row.records is not None and not math.isnan(_value(row))]
    sign = 1 if budget.metric.higher_is_better else -1
    scored.sort(key=lambda row: (-sign * _value(row), -(row.snr or 0.0)))
    failed = [row for row in rows if not any(row is other for other in scored)]
    if not scored:
        return failed, "", ""
    equal = _unbeaten(scored, budget.metric, 0, groups)
    ahead = equal
    best, by = (equal[0], str(budget.metric)) if len(equal) == 1 else (None, "")
    if best is None and budget.metric.name() != "snr":
        snr = Snr()
        by_snr = sorted(equal, key=lambda row: -(row.snr or 0.0))
        ahead = _unbeaten(by_snr, snr, 1, groups)
        best, by = (ahead[0], str(snr)) if len(ahead) == 1 else (None, "")
    if len(scored) == 1:
        best, by = None, ""
    ranked = [replace(row, standing=_standing(row, best, ahead, equal)) for row in scored]
    return [*ranked, *failed], named(best) if best else "", by


def named(row: ObserverScore) -> str:
    """Name a row."""
    return f"{row.observer} with {row.augment}" if row.augment else row.observer


def _standing(
    row: ObserverScore,
    best: ObserverScore | None,
    ahead: Sequence[ObserverScore],
    equal: Sequence[ObserverScore],
) -> str:
    if row is best:
        return "best"
    if any(row is other for other in ahead):
        return "not worse"
    return "lower snr" if any(row is other for other in equal) else "worse"


def _unbeaten(
    rows: Sequence[ObserverScore], metric: Metric, place: int, groups: Sequence[str] | None
) -> list[ObserverScore]:
    """Return the first row and those that it does not beat beyond the noise."""
    first, *others = rows
    found = [first]
    for other in others:
        if first.records is None or other.records is None:
            raise AssertionError("only scored rows are ranked")
        figure = metric
        if isinstance(metric, Fidelity) and metric.kind(first.records[place]) is Kind.SHARE:
            figure = replace(metric, share=0.0)
        even = Budget(figure, 0.0, relative=True)
        score = judge(even, first.records[place], other.records[place], groups)
        better = score.low > score.base if metric.higher_is_better else score.high < score.base
        if not better:
            found.append(other)
    return found


def _value(row: ObserverScore) -> float:
    return row.score.value if row.score else math.nan
