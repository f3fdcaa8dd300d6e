"""Take one plan from recipe to trial: build, load, time against the baseline, score, judge."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError, Refused
from ortune.core.event import Sink, Timing
from ortune.core.trial import (
    Edit,
    Interval,
    Measurement,
    Pair,
    Plan,
    Score,
    Status,
    Trial,
    Verdict,
)
from ortune.measurement import stats
from ortune.measurement.pairs import Effort, time_pair
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.measurement.verify import Evidence, judge
from ortune.model import file
from ortune.recipe.build import build_in
from ortune.study.scene import Part, Scene, shown_beside

HOPELESS = 1.05
"""A plan whose interval lies above this is not scored: it has lost already."""


@dataclass(frozen=True)
class Files:
    """The built models of a plan."""

    paths: Mapping[str, Path]
    edits: tuple[Edit, ...]
    size: int
    changed: bool
    artefact: str


def build_all(scene: Scene, plan: Plan, sink: Sink) -> Files:
    """Build every model of the job by the plan's recipe.

    A quantizer that finds nothing in one of several models leaves that model cleaned.

    Raises:
        OrtuneError: Nothing could be built.
    """
    cache = scene.root / "artefacts"
    paths: dict[str, Path] = {}
    edits: list[Edit] = []
    refused: OrtuneError | None = None
    changed = False
    for name, source in scene.models.items():
        try:
            built = build_in(cache, source, plan.recipe, scene.materials[name], sink=sink)
        except Refused as error:
            refused, paths[name] = error, source
            continue
        paths[name], changed = built.path, changed or built.changed
        edits += built.edits
    if refused is not None and not changed:
        raise refused
    artefact = ""
    if changed:
        folder = next(p.parent for n, p in paths.items() if p != scene.models[n])
        artefact = str(folder.relative_to(scene.root))
    return Files(paths, tuple(edits), sum(map(file.size, paths.values())), changed, artefact)


def attempt(
    scene: Scene,
    key: str,
    plan: Plan,
    files: Files,
    part: Part,
    baseline: Worker,
    effort: Effort,
    sink: Sink,
    *,
    always_score: bool = False,
) -> Trial:
    """Measure and judge a built plan against a live baseline. Whatever happens is a trial."""
    began = time.perf_counter()
    try:
        with start(scene, files.paths, plan.backend, part.name) as worker:
            measurement = _measure(worker, baseline, effort, sink)
            ratio = stats.ratio(measurement.pairs)
            scores: tuple[Score, ...] = ()
            if always_score or ratio.low < HOPELESS:
                scores = score(scene, worker, plan, part)
    except WorkerFailed as error:
        return Trial(
            key,
            plan,
            part.name,
            Status.FAILED,
            size=files.size,
            edits=files.edits,
            artefact=files.artefact,
            why=error.failure.reason,
            error=error.failure.reason,
            reproduce=error.failure.reproduce,
            seconds=time.perf_counter() - began,
        )
    status, why = conclude(scene, ratio, scores)
    return Trial(
        key,
        plan,
        part.name,
        status,
        ratio,
        scores,
        files.size,
        measurement,
        files.edits,
        files.artefact,
        why,
        reproduce=worker.reproduce,
        seconds=time.perf_counter() - began,
    )


def finalist(
    scene: Scene, trial: Trial, files: Files, pairs: int, effort: Effort, sink: Sink
) -> Trial:
    """Re-measure a plan in fresh pairs of processes and score it on held-out data."""
    began = time.perf_counter()
    part = scene.parts["final"]
    taken: list[Pair] = []
    scores: tuple[Score, ...] = ()
    first: Measurement | None = None
    try:
        for turn in range(pairs):
            with (
                start(scene, scene.models, scene.job.baseline, "baseline") as baseline,
                start(scene, files.paths, trial.plan.backend, "final") as worker,
            ):
                ready(baseline)
                measurement = _measure(worker, baseline, effort, sink)
                taken += measurement.pairs
                first = first or measurement
                if turn == 0:
                    scores = score(scene, worker, trial.plan, part)
    except WorkerFailed as error:
        return Trial(
            trial.key,
            trial.plan,
            "final",
            Status.FAILED,
            size=files.size,
            edits=trial.edits,
            artefact=trial.artefact,
            why=error.failure.reason,
            error=error.failure.reason,
            reproduce=error.failure.reproduce,
        )
    ratio = stats.ratio(taken)
    status, why = conclude(scene, ratio, scores)
    if first is None:
        raise AssertionError("a finalist is measured in at least one pair")
    measured = Measurement(
        tuple(taken), first.load_ns, first.first_ns, first.peak_rss, first.placement
    )
    return Trial(
        trial.key,
        trial.plan,
        "final",
        status,
        ratio,
        scores,
        files.size,
        measured,
        trial.edits,
        trial.artefact,
        why,
        reproduce=worker.reproduce,
        seconds=time.perf_counter() - began,
    )


def ready(worker: Worker) -> tuple[int, int, int, Mapping[str, int]]:
    """Load and run once: load ns, first ns, peak bytes, placement."""
    loaded, first = worker.ask("load"), worker.ask("first")
    return loaded["load_ns"], first["first_ns"], first["peak_rss"], loaded["placement"]


def _measure(worker: Worker, baseline: Worker, effort: Effort, sink: Sink) -> Measurement:
    load_ns, first_ns, peak, placement = ready(worker)
    pair = time_pair(baseline, worker, effort, lambda found, blocks: sink(Timing(found, blocks)))
    return Measurement((pair,), load_ns, first_ns, peak, placement)


def score(scene: Scene, worker: Worker, plan: Plan, part: Part) -> tuple[Score, ...]:
    """Score a loaded plan on a part of the data: the budget's metric first."""
    if scene.evaluate:
        answer = worker.ask("evaluate", function=scene.evaluate, timeout_s=scene.timeout_s * 10)
        rows = np.asarray(answer["records"][0], np.float64)[list(part.indices)]
        return (judge(scene.budget, rows, part.records, part.groups),)
    beside = shown_beside(scene.budget)
    answer = worker.ask(
        "score",
        indices=list(part.indices),
        metrics=[scene.budget.metric, *beside],
        expected=str(part.expected),
        labels=_plain(part.labels),
        timeout_s=max(scene.timeout_s, 20 * len(part.indices) * scene.base_ns / 1e9),
    )
    tables = [np.asarray(rows, np.float64) for rows in answer["records"]]
    others = [
        Score(str(m), m.aggregate(t), float("nan"), float("nan"), float("nan"), len(t))
        for m, t in zip(beside, tables[1:], strict=True)
    ]
    snr = next((s.value for s in others if s.metric == "snr"), None)
    if snr is None and scene.budget.metric.name() == "snr":
        snr = scene.budget.metric.aggregate(tables[0])
    evidence = Evidence(exact=not plan.lossy, snr_db=snr)
    return (judge(scene.budget, tables[0], part.records, part.groups, evidence), *others)


def conclude(scene: Scene, ratio: Interval, scores: tuple[Score, ...]) -> tuple[Status, str]:
    """Say what became of a measured plan, and why, in one line."""
    if scores and scores[0].verdict is Verdict.FAILS:
        bound = scene.budget.bound(scores[0].base)
        metric = scores[0].metric
        return Status.FAILS, f"{metric} {scores[0].value:.4g} leaves the budget of {bound:.4g}"
    if ratio.low > 1:
        return Status.SLOWER, f"slower: {ratio.value:.2f} times the original's latency"
    if not scores:
        return Status.SLOWER, f"slower: {ratio.value:.2f} times the original's latency, not scored"
    if ratio.high >= 1:
        return Status.OK, "no difference beyond the noise"
    return Status.OK, f"{1 / ratio.value:.2f}x as fast, accuracy {scores[0].verdict}"


def failed(key: str, plan: Plan, error: OrtuneError) -> Trial:
    """Return the trial of a plan that did not build."""
    return Trial(key, plan, "search", Status.FAILED, why=error.what, error=str(error))


def start(scene: Scene, models: Mapping[str, Path], backend: Backend, label: str) -> Worker:
    """Start a worker for these models in a fresh folder of the run."""
    folder = worker_folder(scene.root / "workers", label)
    job = scene.worker_job(models, backend, folder)
    return Worker(job, timeout_s=scene.timeout_s, memory_limit=scene.memory_limit)


def _plain(labels: tuple[object, ...] | None) -> list[object] | None:
    if labels is None:
        return None
    return [v.tolist() if isinstance(v, (np.ndarray, np.generic)) else v for v in labels]
