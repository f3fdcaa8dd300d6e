"""Take one built plan to a trial: load, time against the baseline, score, judge."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.event import Sink, Timing
from ortune.core.metric import Metric
from ortune.core.trial import (
    Interval,
    Measurement,
    Pair,
    Plan,
    Score,
    Status,
    Trial,
    Verdict,
)
from ortune.experiment.build import Files
from ortune.experiment.context import Context, ScoredPart, shown_beside
from ortune.experiment.records import table
from ortune.measurement.accuracy import judge
from ortune.measurement.job import Failure
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, fresh_pairs, time_pair
from ortune.measurement.timing.turns import Started, ready

HOPELESS = 1.05
"""A plan whose interval lies above this is not scored: it has lost already."""


def attempt(
    context: Context,
    key: str,
    plan: Plan,
    files: Files,
    part: ScoredPart,
    baseline: Worker,
    effort: Effort,
    sink: Sink,
    *,
    scored: Literal["always", "unless slower", "never"] = "unless slower",
) -> Trial:
    """Measure and judge a built plan against a live baseline. Whatever happens is a trial."""
    began, blank = time.perf_counter(), _blank(key, plan, part.name, files)
    scores: tuple[Score, ...] = ()
    try:
        with start(context, files.paths, plan.backend, part.name) as worker:
            started = ready(worker)
            pair = time_pair(
                baseline, worker, effort, lambda found, done: sink(Timing(found, done))
            )
            measured = measurement(started, [pair])
            low = stats.ratio(measured.pairs, stats.SEARCHING).low
            if scored == "always" or (scored == "unless slower" and low < HOPELESS):
                scores = score(context, worker, plan, part)
    except BaselineFailed:
        raise
    except WorkerFailed as error:
        return _died(blank, error.failure, began)
    except OrtuneError as error:
        return _died(blank, Failure(error.what, worker.reproduce), began)
    return _judged(context, blank, measured, scores, worker.reproduce, began)


def finalist(
    context: Context,
    trial: Trial,
    files: Files,
    pairs: int,
    effort: Effort,
    sink: Sink,
    learnt: stats.Learnt = stats.NOTHING,
) -> Trial:
    """Re-measure a plan in fresh pairs of processes and score it on all evaluation samples.

    Args:
        learnt: How far pairs differ, from the rest of the run.
    """
    began, blank = time.perf_counter(), _blank(trial.key, trial.plan, "final", files)
    taken: list[Pair] = []
    scores: tuple[Score, ...] = ()
    fresh = fresh_pairs(
        lambda: start(context, context.models, context.job.baseline, "baseline"),
        lambda: start(context, files.paths, trial.plan.backend, "final"),
        pairs,
        effort,
        lambda found, done: sink(Timing(found, done)),
    )
    try:
        with closing(fresh):
            for one in fresh:
                if not taken:
                    first = one
                    scores = score(context, one.candidate, trial.plan, *context.evaluation())
                taken.append(one.pair)
    except BaselineFailed:
        raise
    except WorkerFailed as error:
        return _died(blank, error.failure, began)
    except OrtuneError as error:
        return _died(blank, Failure(error.what, first.candidate.reproduce), began)
    measured = measurement(first.started, taken)
    return _judged(context, blank, measured, scores, one.candidate.reproduce, began, learnt)


def _blank(key: str, plan: Plan, part: str, files: Files) -> Trial:
    """Return a trial that knows its files and nothing measured."""
    return Trial(
        key,
        plan,
        part,
        Status.FAILED,
        size=files.size,
        edits=files.edits,
        artefact=files.artefact,
    )


def _died(blank: Trial, failure: Failure, began: float) -> Trial:
    return replace(
        blank,
        why=failure.reason,
        error=failure.reason,
        reproduce=failure.reproduce,
        seconds=time.perf_counter() - began,
    )


def _judged(
    context: Context,
    blank: Trial,
    measurement: Measurement,
    scores: tuple[Score, ...],
    reproduce: str,
    began: float,
    learnt: stats.Learnt = stats.NOTHING,
) -> Trial:
    seconds = time.perf_counter() - began
    made = replace(
        blank, scores=scores, measurement=measurement, reproduce=reproduce, seconds=seconds
    )
    return concluded(context, made, learnt)


def learnt(trials: Iterable[Trial], but: str = "") -> stats.Learnt:
    """Return what the A/A pair and the finalists of a run tell about how far pairs differ.

    Args:
        but: Key of the finalist whose own pairs are left out.
    """
    measured = [(t, t.measurement.pairs) for t in trials if t.measurement is not None]
    groups = [pairs for t, pairs in measured if t.part == "final" and t.key != but]
    equal = [pair for t, pairs in measured if t.stage == "baseline" for pair in pairs]
    return stats.Learnt.of(groups, equal)


def concluded(context: Context, trial: Trial, learnt: stats.Learnt) -> Trial:
    """Return a measured trial with interval, status and reason by what its run has learnt.

    A search sorts by less sure intervals than those that are shown.

    Args:
        learnt: How far pairs differ, from the rest of the run.
    """
    if trial.measurement is None:
        return trial
    pairs = trial.measurement.pairs
    ratio = stats.ratio(pairs, learnt=learnt)
    sure = ratio if trial.part == "final" else stats.ratio(pairs, stats.SEARCHING, learnt)
    status, why = conclude(context, sure, trial.scores)
    predicted = stats.prediction(pairs, learnt)
    return replace(trial, ratio=ratio, status=status, why=why, predicted=predicted)


def measurement(started: Started, pairs: Sequence[Pair]) -> Measurement:
    """Put together what a plan took to start and its pairs."""
    return Measurement(
        tuple(pairs), started.load_ns, started.first_ns, started.peak_rss, started.placement
    )


def score(context: Context, worker: Worker, plan: Plan, *parts: ScoredPart) -> tuple[Score, ...]:
    """Score a loaded plan on parts of the data together: the budget's metric first."""
    base = np.concatenate([part.records for part in parts])
    groups = [name for part in parts for name in part.groups or ()] or None
    if context.evaluate:
        answer = worker.ask(
            "evaluate", function=context.evaluate, timeout_s=context.timeout_s * 10
        )
        indices = [index for part in parts for index in part.indices]
        rows = table(answer["records"][0], sum(len(p.indices) for p in context.evaluation()))
        return (judge(context.budget, rows[indices], base, groups),)
    metrics = [context.budget.metric, *shown_beside(context.budget)]
    found = [records(worker, metrics, part, context.scoring_s(part)) for part in parts]
    tables = [np.concatenate(rows) for rows in zip(*found, strict=True)]
    others = [
        Score(str(m), m.aggregate(t), float("nan"), float("nan"), float("nan"), len(t))
        for m, t in zip(metrics[1:], tables[1:], strict=True)
    ]
    snr = next((s.value for s in others if s.metric == "snr"), None)
    if snr is None and context.budget.metric.name() == "snr":
        snr = context.budget.metric.aggregate(tables[0])
    exact = not plan.lossy
    verdict = judge(context.budget, tables[0], base, groups, exact=exact, snr_db=snr)
    if plan.backend.compared_on:
        verdict = replace(verdict, basis=f"{verdict.basis}; {plan.backend.compared_on}")
    return (verdict, *others)


def records(
    worker: Worker, metrics: Sequence[Metric], part: ScoredPart, timeout_s: float
) -> list[NDArray[np.float64]]:
    """Return one table of records a metric.

    Raises:
        WorkerFailed: It does not run.
    """
    answer = worker.ask(
        "score",
        indices=list(part.indices),
        metrics=metrics,
        expected=str(part.expected),
        labels=_plain(part.labels),
        timeout_s=timeout_s,
    )
    return [np.asarray(rows, np.float64) for rows in answer["records"]]


def conclude(context: Context, ratio: Interval, scores: tuple[Score, ...]) -> tuple[Status, str]:
    """Say what became of a measured plan, and why, in one line."""
    if scores and scores[0].verdict is Verdict.FAILS:
        bound = context.budget.bound(scores[0].base)
        metric = scores[0].metric
        return Status.FAILS, f"{metric} {scores[0].value:.4g} leaves the budget of {bound:.4g}"
    measure = context.job.workload.measure
    if ratio.low > 1:
        return Status.SLOWER, f"slower: {ratio.value:.2f} times the original's {measure}"
    if not scores:
        return Status.SCREENED, f"{ratio.value:.2f} times the original's {measure}, not scored"
    if ratio.high >= 1:
        return Status.OK, "no faster beyond the noise"
    return Status.OK, f"{1 / ratio.value:.2f}x as fast, accuracy {scores[0].verdict}"


def start(context: Context, models: Mapping[str, Path], backend: Backend, label: str) -> Worker:
    """Start a worker for these models in a fresh folder of the run."""
    folder = worker_folder(context.root / "workers", label)
    job = context.worker_job(models, backend, folder)
    return Worker(job, timeout_s=context.timeout_s, memory_limit=context.memory_limit)


def _plain(labels: tuple[object, ...] | None) -> list[object] | None:
    if labels is None:
        return None
    return [v.tolist() if isinstance(v, (np.ndarray, np.generic)) else v for v in labels]
