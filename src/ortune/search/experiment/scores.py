"""Score a loaded plan and judge it: the budget's metric decides, others are shown beside it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, OrtuneError
from ortune.core.metric import Metric, stack_records
from ortune.core.study import SampleScores
from ortune.core.trial import Plan, Score, Verdict
from ortune.data.split import compute_split_minimum
from ortune.measurement.accuracy import compute_score, judge_accuracy
from ortune.measurement.process import Worker
from ortune.search.experiment import ledger
from ortune.search.experiment.context import (
    Context,
    ScoredPart,
    list_shown_metrics,
    to_record_array,
)

Records = NDArray[np.float64]


def score_plan(
    context: Context,
    worker: Worker,
    plan: Plan,
    *parts: ScoredPart,
    run_ns: int = 0,
    plans: int | None = 1,
    keep_as: str = "",
) -> tuple[Score, ...]:
    """Score a loaded plan on parts of the data together: the budget's metric first.

    Then come the figures shown beside it, and the outputs that it does not read, which carry
    `Verdict.FAILS` where they fall below their own limits. None of these decides.

    Args:
        run_ns: What its runs take, for the deadline.
        plans: How many were looked at on these samples; None where more will be.
        keep_as: Key of the trial, to keep each sample's score in the run's folder; or empty.
    """
    exact = not plan.lossy
    if context.evaluate:
        limit_s = context.deadlines.score_s(run_ns, context.timeout_s * 10)
        answer = worker.ask("evaluate", function=context.evaluate, timeout_s=limit_s)
        groups = context.yielded
        if groups is None:
            rows = to_record_array(
                answer["records"][0], sum(len(p.indices) for p in context.evaluation_parts())
            )
        else:
            rows = to_record_array(answer["records"][0], len(groups))
            if tuple(answer.get("groups", ())) != groups:
                raise BadData(
                    "the groups that --evaluate yields are not those from the original",
                    fix="yield the same samples in one order, whatever the outputs are",
                )
        rows = rows[[index for part in parts for index in part.indices]]
        _keep_sample_scores(context, keep_as, parts, rows)
        return (_judge_records(context, parts, rows, plans, exact=exact),)
    metric = context.budget.metric
    beside = [*list_shown_metrics(context.budget), *(limit.metric for limit in context.watched)]
    answers = [
        _ask_scores(worker, [metric], part, context.scoring_s(part, run_ns), beside)
        for part in parts
    ]
    metric_records = stack_records([tables[0] for tables, _ in answers])
    shown: list[Records | None] = []
    for tables in zip(*(extras for _, extras in answers), strict=True):
        present = [rows for rows in tables if rows is not None]
        shown.append(stack_records(present) if len(present) == len(tables) else None)
    plain = len(beside) - len(context.watched)
    pairs = zip(beside[:plain], shown[:plain], strict=True)
    figures = [(m, rows) for m, rows in pairs if rows is not None]
    extras = [_make_figure(m, rows, _group_names(parts)) for m, rows in figures]
    pooled = [
        m.aggregate(rows) for m, rows in [(metric, metric_records), *figures] if m.name() == "snr"
    ]
    snr = next(((m, rows) for m, rows in figures if m.name() == "snr"), None)
    _keep_sample_scores(context, keep_as, parts, metric_records, snr)
    verdict = _judge_records(
        context, parts, metric_records, plans, exact=exact, snr_db=pooled[0] if pooled else None
    )
    if plan.backend.compared_on:
        verdict = replace(verdict, basis=f"{verdict.basis}; {plan.backend.compared_on}")
    watched = []  # outputs that the budget does not read
    for limit, table in zip(context.watched, shown[plain:], strict=True):
        if table is None:
            continue
        score = _make_figure(limit.metric, table, _group_names(parts))
        objection = limit.metric.find_objection(table)
        fallen = Verdict.FAILS if objection or not limit.admits(score.value, score.value) else None
        basis = f"an output that the budget ignores; its own limit is {limit.limit:g}"
        basis += f"; {objection}" if objection else ""
        watched.append(replace(score, verdict=fallen, basis=basis))
    return (verdict, *extras, *watched)


def _keep_sample_scores(
    context: Context,
    key: str,
    parts: Sequence[ScoredPart],
    rows: Records,
    snr: tuple[Metric, Records] | None = None,
) -> None:
    """Write what each sample scores alone, of the plan and of the original.

    Nothing is kept where an aggregate of the user's takes no lone sample.
    """
    if not key:
        return
    metric, base = context.budget.metric, stack_records([part.records for part in parts])
    try:
        base_scores, scores = metric.each(base).tolist(), metric.each(rows).tolist()
    except OrtuneError:
        return
    ledger.write_sample_scores(
        context.root,
        key,
        SampleScores(
            str(metric),
            tuple(index for part in parts for index in part.indices),
            tuple(base_scores),
            tuple(scores),
            () if snr is None else tuple(snr[0].each(snr[1]).tolist()),
        ),
    )


def collect_records(
    worker: Worker, metrics: Sequence[Metric], part: ScoredPart, timeout_s: float
) -> list[Records]:
    """Return one table of records a metric. Raises WorkerFailed: it does not run."""
    return _ask_scores(worker, metrics, part, timeout_s)[0]


def _ask_scores(
    worker: Worker,
    metrics: Sequence[Metric],
    part: ScoredPart,
    timeout_s: float,
    beside: Sequence[Metric] = (),
) -> tuple[list[Records], list[Records | None]]:
    """Return a table a metric, and one a metric beside them; None where that cannot score."""
    arrays = (np.ndarray, np.generic)
    labels = part.labels and [v.tolist() if isinstance(v, arrays) else v for v in part.labels]
    answer = worker.ask(
        "score",
        indices=list(part.indices),
        metrics=metrics,
        beside=beside,
        expected=part.expected,
        labels=labels,
        timeout_s=timeout_s,
    )
    seen = zip(beside, answer["beside"], strict=True)
    shown = [None if rows is None else metric.table(rows) for metric, rows in seen]
    pairs = zip(metrics, answer["records"], strict=True)
    return [metric.table(rows) for metric, rows in pairs], shown


def _judge_records(
    context: Context,
    parts: Sequence[ScoredPart],
    rows: Records,
    plans: int | None,
    *,
    exact: bool = False,
    snr_db: float | None = None,
) -> Score:
    """Judge records of all parts by the budget, and by each looser step of it.

    A proof rests on the samples that nothing was chosen by. Where a search holds some out, what a
    proof needs is so many in all, as its outlook says. Steps need no smaller error: samples that
    prove one prove every looser one, so that the chance of any false proof is that of the loosest
    step which the plan misses.
    """
    held_out = len(context.evaluation_parts()) > 1
    starts = np.cumsum([0, *(len(part.indices) for part in parts)]).tolist()
    base, groups = stack_records([part.records for part in parts]), _group_names(parts)
    proof = [start + at for start, part in zip(starts, parts, strict=False) for at in part.proof]
    counted = [
        start + at
        for start, part in zip(starts, parts, strict=False)
        for at in (range(len(part.indices)) if part.different is None else part.different)
    ]
    scores = [
        judge_accuracy(
            step,
            rows,
            base,
            groups,
            proof=proof,
            counted=counted,
            plans=plans,
            error=context.error,
            seed=context.seed,
            exact=exact,
            snr_db=snr_db,
            provable=context.provable,
        )
        for step in context.budget.steps
    ]
    if held_out:
        scores = [
            score
            if score.needed is None
            else replace(score, needed=compute_split_minimum(score.needed))
            for score in scores
        ]
    return replace(scores[0], looser=tuple(scores[1:]))


def _group_names(parts: Sequence[ScoredPart]) -> list[str] | None:
    return [name for part in parts for name in part.groups or ()] or None


def _make_figure(metric: Metric, rows: Records, groups: Sequence[str] | None) -> Score:
    """Return a figure that nobody judges, as a budget of its metric would read it."""
    nan, value = math.nan, compute_score(metric, rows, groups)
    return Score(str(metric), value, metric.aggregate_base(rows), nan, nan, len(rows))
