"""Take one plan to a trial: build, load, time against the baseline, score, judge."""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Literal

from ortune.core.acceptance import is_accepted
from ortune.core.backend import Backend
from ortune.core.errors import Interruption, OrtuneError, Refused, find_interruption
from ortune.core.event import Sink, Timing, ignore_event
from ortune.core.judgement import conclude_trial
from ortune.core.plugins import codec
from ortune.core.session import Recorded
from ortune.core.step import Edit
from ortune.core.trial import (
    Burst,
    Interval,
    Measurement,
    Pair,
    Plan,
    Score,
    Status,
    Trial,
)
from ortune.graph.io import file
from ortune.graph.io.names import make_names_unique
from ortune.graph.ir import edit
from ortune.graph.mapping.nodes import count_integer_layers
from ortune.measurement.accuracy import decide_likely
from ortune.measurement.job import Failure
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.measurement.timing import stats
from ortune.measurement.timing.operators import operator_shares, record_kernels
from ortune.measurement.timing.pairs import (
    BaselineFailed,
    Effort,
    LivePair,
    fresh_pairs,
    time_pair,
)
from ortune.measurement.timing.turns import StartupTimes, wait_until_ready
from ortune.search.experiment.context import Context, ScoredPart
from ortune.search.experiment.ledger import ORIGINAL, write_kernels
from ortune.search.experiment.scores import score_plan
from ortune.search.recipe.build import build_in
from ortune.search.recipe.built import link_or_copy, steps_key


@dataclass(frozen=True)
class Files:
    """The built models of a plan.

    Attributes:
        content: Digest of what they compute, all models together; empty where it is not known.
    """

    paths: Mapping[str, Path]
    edits: tuple[Edit, ...]
    size: int
    changed: bool
    artefact: str
    content: str = ""


def build_all(context: Context, plan: Plan, sink: Sink) -> Files:
    """Build every model of the job by the plan's recipe.

    A quantizer that finds nothing in one of several models leaves that model as it came.

    Raises:
        OrtuneError: Nothing could be built.
    """
    cache = context.root / "artefacts"
    paths: dict[str, Path] = {}
    edits: list[Edit] = []
    contents: list[str] = []
    refused: OrtuneError | None = None
    changed = False
    for name, source in context.models.items():
        try:
            recipe = plan.recipe.select_for(name)
            if context.ahead is not None:
                context.ahead.take(name, recipe)
            began = monotonic()
            built = build_in(cache, source, recipe, context.materials[name], sink=sink)
            if context.ahead is not None:
                context.ahead.longest_s = max(context.ahead.longest_s, monotonic() - began)
        except Refused as error:
            refused, paths[name] = error, source
            continue
        paths[name], changed = built.path, changed or built.changed
        edits += built.edits
        contents.append(built.content)
    if refused is not None and not changed:
        raise refused
    if plan.recipe.only:
        # Models built by recipes of their own go into the folder of the whole plan.
        whole = cache / steps_key(plan.recipe.steps)
        whole.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            if path != context.models[name]:
                for part in path.parent.glob(f"{path.stem}.*"):
                    link_or_copy(part, whole / part.name)
                paths[name] = whole / path.name
    artefact = ""
    if changed:
        folder = next(p.parent for n, p in paths.items() if p != context.models[n])
        artefact = str(folder.relative_to(context.root))
    content = codec.digest(contents) if all(contents) and refused is None else ""
    size = sum(map(file.count_file_bytes, paths.values()))
    return Files(paths, tuple(edits), size, changed, artefact, content if changed else "")


_PROFILED_S, _PROFILED_MOST_S, _OPENINGS = 2.0, 8.0, 3.0
"""What profiling a finalist may take: the first, or so many openings of its session where they are
longer, but no more than the second; one that takes longer to open is not profiled."""
HOPELESS = 1.05  # a plan whose interval lies above this is not scored: it has lost already


def measure_plan(
    context: Context,
    key: str,
    plan: Plan,
    files: Files,
    part: ScoredPart,
    baseline: Worker,
    *,
    effort: Effort,
    sink: Sink,
    scored: Literal["always", "unless slower", "never"] = "unless slower",
) -> Trial:
    """Measure and judge a built plan against a live baseline. Whatever happens is a trial.

    One that `effort` stops part way is not scored.
    """
    began, blank = time.perf_counter(), make_blank(key, plan, part.name, files)
    scores: tuple[Score, ...] = ()
    rule, stopped = effort.stop, ""

    def stop(pair: Pair, done: float | None = None) -> str:
        nonlocal stopped
        stopped = "" if rule is None else rule(pair, done)
        return stopped

    try:
        with start_worker(context, files.paths, plan.backend, part.name) as worker:
            worker.take_turns_with(baseline)
            started = wait_until_ready(worker)
            pair = time_pair(
                baseline,
                worker,
                replace(effort, stop=stop if rule else None),
                lambda partial_pair, done: sink(Timing(partial_pair, done)),
            )
            measured = make_measurement(started, [pair])
            low = stats.latency_ratio(measured.pairs, stats.SEARCHING).low
            may_win = scored == "unless slower" and low < HOPELESS and not stopped
            if scored == "always" or may_win:
                longest = max(pair.blocks[-1].candidate.latency_ns)
                scores = score_plan(context, worker, plan, part, run_ns=longest, plans=None)
            blank = replace(blank, stopped=stopped)
    except WorkerFailed as error:
        if isinstance(error, BaselineFailed) and error.interruption is not Interruption.LINK:
            raise
        return _fail_trial(blank, error.failure, began)
    except OrtuneError as error:
        failure = Failure(error.what, worker.reproduce, interruption=find_interruption(error))
        return _fail_trial(blank, failure, began)
    reproduce = worker.reproduce
    return _finish_trial(context, blank, measured, scores, reproduce=reproduce, began=began)


def measure_finalist(
    context: Context,
    trial: Trial,
    files: Files,
    *,
    effort: Effort,
    sink: Sink,
    learnt: stats.PooledVariance,
    is_enough: Callable[[Interval, bool], bool] = lambda ratio, accepted: False,
    provable: bool = False,
    plans: int = 1,
    chosen_by_samples: bool = False,
    former_scores: tuple[Score, ...] = (),
    kept: bool = True,
) -> Trial:
    """Re-measure a plan in fresh pairs of processes and score it on all evaluation samples.

    Args:
        learnt: How far pairs differ, from the rest of the run.
        is_enough: Asked after each pair from the second on whether its interval so far is all that
            is wanted, and told whether its accuracy is accepted; without it there are
            `stats.PAIRS`.
        provable: The held-out samples may prove its accuracy: see `Context.finalists`.
        plans: How many were looked at so far.
        chosen_by_samples: The search's samples designed it: the held-out ones alone count.
        former_scores: Scores that stand: none are taken.
        kept: Its kernels and the scores of each sample are kept, for a report.
    """
    began, blank = time.perf_counter(), make_blank(trial.key, trial.plan, "final", files)
    timed: list[Pair] = []
    scores = former_scores
    fresh = fresh_pairs(
        lambda: start_worker(context, context.models, context.job.baseline, "baseline"),
        lambda: start_worker(context, files.paths, trial.plan.backend, "final"),
        stats.PAIRS,
        effort,
        lambda partial_pair, done: sink(Timing(partial_pair, done)),
    )
    parts = context.evaluation_parts()
    if chosen_by_samples:
        parts = tuple(replace(part, different=part.proof) for part in parts)
    if not provable:
        parts = tuple(replace(part, proof=()) for part in parts)
    try:
        with closing(fresh):
            for fresh_pair in fresh:
                if not timed:
                    first = fresh_pair
                    scores = former_scores or score_plan(
                        context,
                        fresh_pair.candidate,
                        trial.plan,
                        *parts,
                        run_ns=max(fresh_pair.pair.blocks[-1].candidate.latency_ns),
                        plans=plans,
                        keep_as=trial.key if kept else "",
                    )
                    if kept:
                        blank = _profile_finalist(context, blank, files, fresh_pair)
                timed.append(fresh_pair.pair)
                if len(timed) >= stats.FEWEST_PAIRS and is_enough(
                    stats.claim_ratio(timed, learnt),
                    is_accepted(replace(blank, scores=scores, status=Status.OK), strict=False),
                ):
                    break
    except WorkerFailed as error:
        if isinstance(error, BaselineFailed) and error.interruption is not Interruption.LINK:
            raise
        return _fail_trial(blank, error.failure, began)
    except OrtuneError as error:
        interruption = find_interruption(error)
        failure = Failure(error.what, first.candidate.reproduce, interruption=interruption)
        return _fail_trial(blank, failure, began)
    measured = make_measurement(first.started, timed)
    reproduce = fresh_pair.candidate.reproduce
    return _finish_trial(
        context, blank, measured, scores, reproduce=reproduce, began=began, learnt=learnt
    )


def _profile_finalist(context: Context, trial: Trial, files: Files, pair: LivePair) -> Trial:
    """Say what a finalist's time goes to, the last that its process does, where that is known.

    The original is profiled beside it, so that both are of one occasion. Runtimes record one model
    at a time: of a job with several nothing is recorded.
    """
    if len(context.models) > 1:
        return trial
    before, after = pair.pair.blocks[-1].baseline, pair.pair.blocks[-1].candidate
    if pair.baseline_started is not None:
        _record_side(context, ORIGINAL, pair.baseline, pair.baseline_started, before)
    recorded = _record_side(context, trial.key, pair.candidate, pair.started, after)
    if recorded is None:
        return trial
    model = file.load(next(iter(files.paths.values())))
    edit.inline_functions(model)
    make_names_unique(model)
    integers = count_integer_layers(model, recorded)
    return replace(trial, by_operator=operator_shares(recorded), integers=integers)


def _record_side(
    context: Context, key: str, worker: Worker, started: StartupTimes, runs: Burst
) -> Recorded | None:
    """Keep what the runtime records of one side; None where it cannot: a report does without."""
    folder = context.root / "workers" / f"profile-{os.getpid()}"
    times = {"load_ns": started.load_ns, "run_ns": min(runs.latency_ns)}
    openings_s = _OPENINGS * started.load_ns / 1e9
    seconds = max(_PROFILED_S, min(_PROFILED_MOST_S, openings_s))
    try:
        recorded = record_kernels(worker, folder, seconds=seconds, **times)
    except (OrtuneError, WorkerFailed):
        return None
    write_kernels(context.root, key, recorded)
    return recorded


def make_blank(key: str, plan: Plan, part: str, files: Files) -> Trial:
    """Return a trial that knows its files and nothing measured."""
    return Trial(
        key,
        plan,
        part,
        Status.FAILED,
        size=files.size,
        edits=files.edits,
        artefact=files.artefact,
        content=files.content,
    )


def _fail_trial(blank: Trial, failure: Failure, began: float) -> Trial:
    return replace(
        blank,
        why=failure.reason,
        error=failure.reason,
        interruption=failure.interruption,
        reproduce=failure.reproduce,
        seconds=time.perf_counter() - began,
    )


def _finish_trial(
    context: Context,
    blank: Trial,
    measurement: Measurement,
    scores: tuple[Score, ...],
    *,
    reproduce: str,
    began: float,
    learnt: stats.PooledVariance = stats.NOTHING,
) -> Trial:
    seconds = time.perf_counter() - began
    trial = replace(
        blank, scores=scores, measurement=measurement, reproduce=reproduce, seconds=seconds
    )
    return judge_trial(context, trial, learnt)


def pool_variance(trials: Iterable[Trial], but: str = "") -> stats.PooledVariance:
    """Return what the A/A pair and the finalists, `but` for one key, tell of how pairs differ."""
    measured = [(t, t.measurement.pairs) for t in trials if t.measurement is not None]
    groups = [pairs for t, pairs in measured if t.part == "final" and t.key != but]
    equal = [pair for t, pairs in measured if t.stage == "baseline" for pair in pairs]
    return stats.PooledVariance.pool(groups, equal)


def judge_trial(
    context: Context, trial: Trial, learnt: stats.PooledVariance, plans: int | None = None
) -> Trial:
    """Return a measured trial with interval, status and reason by what its run has learnt.

    A search sorts by less sure intervals than those that are shown. `plans` were looked at,
    which counts for a finalist's accuracy; None leaves that as it is.
    """
    if (measured := trial.measurement) is None:
        return trial
    if plans is not None and trial.score is not None:
        judged_scores = (decide_likely(trial.score, plans), *trial.scores[1:])
        trial = replace(trial, scores=judged_scores)
    pairs = measured.pairs
    final = trial.part == "final"
    ratio = (
        stats.claim_ratio(pairs, learnt) if final else stats.latency_ratio(pairs, learnt=learnt)
    )
    sure = ratio if final else stats.latency_ratio(pairs, stats.SEARCHING, learnt)
    predicted: Interval | None = stats.predict_ratio(pairs, learnt)
    waited = bool(pairs) and stats.count_unusable(pairs) == len(pairs)
    if emulated := context.job.emulated:
        ratio, predicted = Interval(ratio.value, 0.0, math.inf), None
        trial = replace(trial, stopped="stopped early" if trial.stopped else "")
    trial = replace(trial, ratio=ratio, predicted=predicted, waited=waited, emulated=emulated)
    return conclude_trial(trial, context.budget, context.job.workload.measure, sure)


def make_measurement(started: StartupTimes, pairs: Sequence[Pair]) -> Measurement:
    """Put together what a plan took to start and its pairs."""
    return Measurement(
        tuple(pairs), started.load_ns, started.first_ns, started.peak_rss, started.placement
    )


def start_worker(
    context: Context,
    models: Mapping[str, Path],
    backend: Backend,
    label: str,
    sink: Sink = ignore_event,
) -> Worker:
    """Start a worker for these models in a fresh folder of the run."""
    folder = worker_folder(context.root / "workers", label)
    job = context.worker_job(models, backend, folder)
    return Worker(
        job,
        timeout_s=context.timeout_s,
        memory_limit=context.memory_limit,
        deadlines=None if label == "baseline" else context.deadlines.list_seconds(backend.runs_on),
        sink=sink,
    )
