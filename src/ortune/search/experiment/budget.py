"""The accuracy budget, fixed before any candidate exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.metric import Kind, stack_records
from ortune.core.workload import spread_indices
from ortune.data import derive
from ortune.data.stream import Stream
from ortune.measurement.accuracy import compute_score
from ortune.measurement.evidence import check_bounds
from ortune.metrics.score import EvaluateScore
from ortune.search.experiment.context import ScoredPart

_LOOKED_AT = 64
"""Samples from which a budget is derived."""


def budget_for(
    budget: Budget | None, outputs: Stream, labels: Sequence[Any] | None
) -> tuple[Budget, str]:
    """Return the given budget, or derive one, and the rule that gave it; empty where given.

    Raises:
        BadData: It needs labels and there are none.
    """
    if budget is not None:
        if budget.metric.needs_labels and labels is None:
            raise BadData(
                f"budget '{budget}' needs labels and the data have none",
                fix="put an array 'label' into the samples, or give --labels FILE",
            )
        return budget, ""
    looked = spread_indices(len(outputs), _LOOKED_AT)
    tensors = {name: [outputs[i][name] for i in looked] for name in outputs[0]}
    return derive.derive_budget(tensors, None if labels is None else [labels[i] for i in looked])


def budget_for_evaluate(function: str, budget: Budget | None) -> tuple[Budget, str]:
    """Return the budget of an evaluate function's records, and the rule that gave it.

    Raises:
        BadSettings: The given one does not judge what is scored.
    """
    metric = EvaluateScore(path=function)
    if budget is None:
        limit = -0.01 if metric.higher_is_better else 0.01
        return Budget(metric, limit, relative=True), "--evaluate: within 0.01 of the original"
    metric_path = getattr(budget.metric, "path", "")
    if budget.metric.name() not in ("score", "function") or metric_path not in ("", function):
        raise BadSettings(
            f"budget '{budget}' does not judge what --evaluate returns",
            fix="write score>=base-0.01",
        )
    return replace(budget, metric=metric), ""


def validate_budget(budget: Budget, parts: Sequence[ScoredPart]) -> None:
    """Refuse a budget that the original itself misses, or whose bounds its records leave.

    Raises:
        BadSettings: It does, or cannot be scored at all.
        BadData: A record is outside the bounds that the metric declares.
    """
    if budget.metric.kind() is Kind.MEAN:
        for part in parts:
            check_bounds(budget.metric, part.records)
    groups = [name for part in parts for name in part.groups or ()] or None
    base = compute_score(budget.metric, stack_records([part.records for part in parts]), groups)
    if not budget.admits(base, base):
        raise BadSettings(
            f"the original itself scores {base:.4g} and misses the budget {budget}",
            fix="loosen the budget, or make it relative: metric>=base-0.01",
        )
