"""Score a loaded plan and judge it: the budget's metric decides, others are shown beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.metric import Metric, joined
from ortune.core.trial import Plan, Score, Verdict
from ortune.measurement.accuracy import judge, scored
from ortune.measurement.process import Worker
from ortune.search.experiment.context import Context, ScoredPart, shown_beside
from ortune.search.experiment.records import table

Records = NDArray[np.float64]


def score(
    context: Context, worker: Worker, plan: Plan, *parts: ScoredPart, run_ns: int = 0
) -> tuple[Score, ...]:
    """Score a loaded plan on parts of the data together: the budget's metric first.

    Then come the figures shown beside it, and the outputs that it does not read, which carry
    `Verdict.FAILS` where they fall below their own limits. None of these decides.

    Args:
        run_ns: What its runs take, for the deadline.
    """
    if context.evaluate:
        return (_judged(context, parts, _evaluated(context, worker, parts, run_ns)),)
    metric = context.budget.metric
    beside = [*shown_beside(context.budget), *(limit.metric for limit in context.watched)]
    answers = [
        _ask(worker, [metric], part, context.scoring_s(part, run_ns), beside) for part in parts
    ]
    own = joined([tables[0] for tables, _ in answers])
    shown = [_joined(tables) for tables in zip(*(others for _, others in answers), strict=True)]
    plain = len(beside) - len(context.watched)
    pairs = zip(beside[:plain], shown[:plain], strict=True)
    figures = [(m, rows) for m, rows in pairs if rows is not None]
    others = [_shown(m, rows, _groups(parts)) for m, rows in figures]
    pooled = [m.aggregate(rows) for m, rows in [(metric, own), *figures] if m.name() == "snr"]
    verdict = _judged(
        context, parts, own, exact=not plan.lossy, snr_db=pooled[0] if pooled else None
    )
    if plan.backend.compared_on:
        verdict = replace(verdict, basis=f"{verdict.basis}; {plan.backend.compared_on}")
    return (verdict, *others, *_watched(context, parts, shown[plain:]))


def records(
    worker: Worker, metrics: Sequence[Metric], part: ScoredPart, timeout_s: float
) -> list[Records]:
    """Return one table of records a metric.

    Raises:
        WorkerFailed: It does not run.
    """
    return _ask(worker, metrics, part, timeout_s)[0]


def _ask(
    worker: Worker,
    metrics: Sequence[Metric],
    part: ScoredPart,
    timeout_s: float,
    beside: Sequence[Metric] = (),
) -> tuple[list[Records], list[Records | None]]:
    """Return a table a metric, and one a metric beside them; None where that cannot score."""
    answer = worker.ask(
        "score",
        indices=list(part.indices),
        metrics=metrics,
        beside=beside,
        expected=str(part.expected),
        labels=_plain(part.labels),
        timeout_s=timeout_s,
    )
    seen = zip(beside, answer["beside"], strict=True)
    shown = [None if rows is None else metric.table(rows) for metric, rows in seen]
    pairs = zip(metrics, answer["records"], strict=True)
    return [metric.table(rows) for metric, rows in pairs], shown


def _joined(tables: Sequence[Records | None]) -> Records | None:
    """Return the tables of all parts in one; None where one is missing."""
    known = [rows for rows in tables if rows is not None]
    return joined(known) if len(known) == len(tables) else None


def _plain(labels: tuple[object, ...] | None) -> list[object] | None:
    if labels is None:
        return None
    return [v.tolist() if isinstance(v, (np.ndarray, np.generic)) else v for v in labels]


def _judged(
    context: Context,
    parts: Sequence[ScoredPart],
    rows: Records,
    *,
    exact: bool = False,
    snr_db: float | None = None,
) -> Score:
    """Judge records of all parts; a proof rests on the samples that nothing was chosen by."""
    starts = np.cumsum([0, *(len(part.indices) for part in parts)])
    return judge(
        context.budget,
        rows,
        joined([part.records for part in parts]),
        _groups(parts),
        proof=[
            start + at
            for start, part in zip(starts.tolist(), parts, strict=False)
            for at in part.proof
        ],
        error=context.error,
        seed=context.seed,
        exact=exact,
        snr_db=snr_db,
    )


def _groups(parts: Sequence[ScoredPart]) -> list[str] | None:
    return [name for part in parts for name in part.groups or ()] or None


def _evaluated(
    context: Context, worker: Worker, parts: Sequence[ScoredPart], run_ns: int
) -> Records:
    """Return the evaluate function's records on these parts.

    Raises:
        BadData: They are not of the samples that the original's were of.
    """
    limit_s = context.deadlines.score_s(run_ns, context.timeout_s * 10)
    answer = worker.ask("evaluate", function=context.evaluate, timeout_s=limit_s)
    known = context.yielded
    if known is None:
        rows = table(answer["records"][0], sum(len(p.indices) for p in context.evaluation()))
    else:
        rows = table(answer["records"][0], len(known))
        if tuple(answer.get("groups", ())) != known:
            raise BadData(
                "the groups that --evaluate yields are not those from the original",
                fix="yield the same samples in one order, whatever the outputs are",
            )
    return rows[[index for part in parts for index in part.indices]]


def _shown(metric: Metric, rows: Records, groups: Sequence[str] | None) -> Score:
    """Return a figure that nobody judges, as a budget of its metric would read it."""
    nan, value = math.nan, scored(metric, rows, groups)
    return Score(str(metric), value, nan, nan, nan, len(rows))


def _watched(
    context: Context, parts: Sequence[ScoredPart], tables: Sequence[Records | None]
) -> list[Score]:
    """Return the scores of the outputs that the budget does not read."""
    found = []
    for limit, rows in zip(context.watched, tables, strict=True):
        if rows is None:
            continue
        score = _shown(limit.metric, rows, _groups(parts))
        fallen = None if limit.admits(score.value, score.value) else Verdict.FAILS
        basis = f"an output that the budget does not read; its own limit is {limit.limit:g}"
        found.append(replace(score, verdict=fallen, basis=basis))
    return found
