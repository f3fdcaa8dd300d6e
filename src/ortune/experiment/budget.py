"""The accuracy budget, fixed before any candidate exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.workload import spread
from ortune.data import derive
from ortune.data.stream import Stream
from ortune.experiment.context import Part
from ortune.experiment.request import Request
from ortune.experiment.samples import Feeding
from ortune.metrics.score import EvaluateScore

_LOOKED_AT = 64


def choose(request: Request, feeding: Feeding, outputs: Stream | None) -> tuple[Budget, str]:
    """Read the given budget, or derive one; return it and the rule that gave it.

    Args:
        request: What was asked.
        feeding: The samples.
        outputs: The baseline's outputs on the search part; None with an evaluate function.

    Raises:
        BadSettings: The budget cannot be read, or does not judge what is scored.
        BadData: It needs labels and there are none.
    """
    if request.evaluate:
        return _evaluated(request.evaluate, request.budget)
    labels = feeding.feeds.labels if feeding.feeds else None
    if request.budget is not None:
        budget = Budget.parse(request.budget)
        if budget.metric.needs_labels and labels is None:
            raise BadData(
                f"budget '{budget}' needs labels and the data have none",
                fix="put an array 'label' into the samples, or give --labels FILE",
            )
        return budget, ""
    if outputs is None:
        raise AssertionError("without an evaluate function there are outputs")
    looked = spread(len(outputs), _LOOKED_AT)
    found = {name: [outputs[i][name] for i in looked] for name in outputs[0]}
    indices = feeding.parts["search"]
    some = None if labels is None else [labels[indices[i]] for i in looked]
    return derive.derive(found, some)


def _evaluated(function: str, given: str | None) -> tuple[Budget, str]:
    metric = EvaluateScore(path=function)
    if given is None:
        limit = -0.01 if metric.higher_is_better else 0.01
        return Budget(metric, limit, relative=True), "--evaluate: within 0.01 of the original"
    budget = Budget.parse(given)
    named = getattr(budget.metric, "path", "")
    if budget.metric.name() not in ("score", "function") or named not in ("", function):
        raise BadSettings(
            f"budget '{given}' does not judge what --evaluate returns",
            fix="write score>=base-0.01",
        )
    return replace(budget, metric=metric), ""


def check(budget: Budget, parts: Sequence[Part]) -> None:
    """Refuse a budget that the original itself misses.

    Raises:
        BadSettings: It does, or cannot be scored at all.
    """
    base = budget.metric.aggregate(np.concatenate([part.records for part in parts]))
    if not budget.admits(base, base):
        raise BadSettings(
            f"the original itself scores {base:.4g} and misses the budget {budget}",
            fix="loosen the budget, or make it relative: metric>=base-0.01",
        )
