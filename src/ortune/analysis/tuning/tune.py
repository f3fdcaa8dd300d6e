"""The runtime settings that a model runs fastest with, on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortune.analysis.tuning.descent import Answers, Attempt, Descent, Tools, changed
from ortune.analysis.tuning.requests import Tune
from ortune.core.acceptance import Outcome
from ortune.core.atomic_write import write_text
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.event import Note, TimeLeft
from ortune.core.facts import TensorSpec
from ortune.core.outputs import free
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_given
from ortune.core.reading import read_workload
from ortune.core.request import verb
from ortune.core.result import TableResult, as_json
from ortune.core.trial import Interval, Verdict
from ortune.core.workload import Workload, spread
from ortune.data import given
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.experiment.budget import budget_for
from ortune.experiment.context import ScoredPart
from ortune.experiment.records import scored_part
from ortune.experiment.scores import records
from ortune.measurement.accuracy import EXACT_DB, judge
from ortune.measurement.capabilities import demand
from ortune.measurement.machine import noise
from ortune.measurement.machine.load import busy
from ortune.measurement.outputs import keep_outputs
from ortune.measurement.process import Worker, WorkerFailed, lone
from ortune.measurement.timing import stats
from ortune.measurement.timing.turns import ready
from ortune.metrics.max_error import MaxError
from ortune.metrics.snr import Snr
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file
from ortune.recipe.space import Target

WORDS = tuple(one for one in Outcome if one is not Outcome.UNTRIED)


@dataclass(frozen=True, repr=False)
class TuneResult(TableResult):
    """The settings that a model runs fastest with.

    Attributes:
        start: The backend as given.
        best: The backend to use, spelled.
        settings: All its fields.
        changed: The fields that differ from the start.
        improved: Whether anything was faster beyond the noise.
        lossy: Whether the settings change numbers.
        ratio: Of the latencies, best over start, in fresh pairs.
        cpu_ratio: Of the CPU time per inference, spinning included.
        finished: Whether all was tried: ``done``, or ``time``.
        attempts: Every value that was tried.
        denormals: Share of the weights that are denormal.
        samples: How many outputs were compared.
        synthetic: Whether the inputs were made up.
        beside_load: Cores that were kept busy meanwhile.
        noise: Readings of the machine meanwhile.
        unconfirmed: The settings that the steps led to, where fresh pairs did not confirm them.
        counts: How many values came to what, in words.
        too_noisy: The machine was too noisy for a verdict; never beside a claim.
        advice: What was wrong with the machine meanwhile, and what to change; the worst first.
    """

    headline = ("model", "best", "ratio", "cpu_ratio", "lossy", "finished")
    table = "attempts"

    start: str
    best: str
    settings: Mapping[str, Any]
    changed: str
    improved: bool
    lossy: bool
    ratio: Interval
    cpu_ratio: Interval | None
    finished: str
    attempts: tuple[Attempt, ...]
    model: str
    workload: str
    cpus: int
    denormals: float | None
    budget: str
    budget_rule: str
    samples: int
    synthetic: bool
    beside_load: int
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    noise: Mapping[str, str]
    unconfirmed: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    too_noisy: bool = False
    advice: tuple[str, ...] = ()


_COMPARED = 32
"""Samples whose outputs are compared."""
_SCORING_S = 300.0


def run(asked: Tune) -> TuneResult:
    """Descend over a backend's settings by paired tests.

    Fields given in `on` are pinned. What changes numbers must keep the budget; all else must give
    the same outputs.
    """
    out = None if asked.out is None else free(asked.out, asked.force, asked.model)
    result = _tuned(asked)
    if out is not None:
        write_text(out, as_json(result, indent=1) + "\n")
    return result


def _tuned(asked: Tune) -> TuneResult:
    origin, pinned = parse_given(Backend, asked.backends)
    offered = demand(origin)
    path, driven = Path(asked.model), read_workload(asked.workload, asked.batch)
    loaded = file.load(path)
    facts = model_facts.facts(loaded, read=True)
    before = noise.snapshot()
    with TemporaryDirectory(prefix="ortune-") as folder, busy(int(asked.beside_load)):
        fed = _samples(asked, facts.inputs, driven.batch, Path(folder))
        case = _Case(path, driven, fed, Path(folder))
        try:
            truth = _truth(case, origin, asked.budget)
            asked.sink(TimeLeft(asked.seconds))
            tell = lambda tried: asked.sink(Note(line(tried)))  # noqa: E731
            tools = Tools(case.start, truth.compare, tell, asked.sink)
            target = Target(origin, offered, pinned, driven.splits(offered.effective_cpus))
            descent = Descent(target, facts, tools, asked.seconds, waiting=bool(asked.beside_load))
            found = descent.run()
            ratio, cpu = judged(descent)
        except WorkerFailed as error:
            fix = f"check the model and the data; again alone: {error.failure.reproduce}"
            raise error.as_bad_model(path, origin, fix) from None
    record = noise.between(before, noise.snapshot())
    improved = descent.best != origin
    reach = stats.half_width(descent.learnt())
    machine = noise.judge(record, descent.disturbed(), reach=reach, claimed=improved)
    outcomes = [attempt.outcome for attempt in descent.attempts]
    return TuneResult(
        start=str(origin),
        best=str(descent.best),
        settings=codec.encode(descent.best),
        changed=changed(origin, descent.best),
        improved=improved,
        lossy=descent.best.lossy,
        ratio=ratio,
        cpu_ratio=cpu,
        finished=descent.finished,
        attempts=tuple(descent.attempts),
        model=str(path),
        workload=str(driven),
        cpus=offered.effective_cpus,
        denormals=facts.denormals,
        budget=str(truth.budget),
        budget_rule=truth.rule,
        samples=len(truth.part.indices),
        synthetic=fed.synthetic,
        beside_load=int(asked.beside_load),
        machine=offered.machine,
        versions=offered.versions,
        noise=record.readings(),
        unconfirmed="" if found == descent.best else str(found),
        counts={str(one): outcomes.count(one) for one in WORDS}
        | {str(Outcome.UNTRIED): descent.untried},
        too_noisy=machine.too_noisy,
        advice=tuple(map(str, machine.advice)),
    )


tune = verb(Tune, run)


def _samples(asked: Tune, inputs: Sequence[TensorSpec], batch: int, folder: Path) -> Feeds:
    return given.samples(
        asked.data,
        inputs,
        folder,
        labels=asked.labels,
        batch=batch,
        shapes=asked.shapes,
        ranges=asked.ranges,
        sink=asked.sink,
    )


def line(attempt: Attempt) -> str:
    """Write an attempt as one line."""
    ratio = "" if attempt.ratio is None else f" {attempt.ratio}"
    word = "kept" if attempt.kept else "not kept"
    return f"{attempt.value}:{ratio} {word}: {attempt.why}"


@dataclass(frozen=True)
class _Case:
    """What every worker of a tuning shares."""

    model: Path
    workload: Workload
    fed: Feeds
    folder: Path

    def start(self, backend: Backend) -> Worker:
        """Start a worker, not loaded yet."""
        stream = self.fed.stream
        return Worker(lone(self.model, backend, stream, self.folder, "tune", self.workload))


@dataclass(frozen=True)
class _Truth:
    """The outputs of the start, and how others are compared with them."""

    part: ScoredPart
    budget: Budget
    rule: str

    def compare(self, worker: Worker, backend: Backend) -> Answers:
        """Compare a loaded worker's outputs: equal to 80 dB, or within the budget if lossy."""
        metrics = [self.budget.metric, Snr(), MaxError()]
        tables = records(worker, metrics, self.part, _SCORING_S)
        snr, error = metrics[1].aggregate(tables[1]), metrics[2].aggregate(tables[2])
        if snr >= EXACT_DB:
            return Answers(True, "the same outputs", snr, error)
        if not backend.lossy:
            return Answers(False, f"its outputs differ: {snr:.0f} dB", snr, error)
        score = judge(self.budget, tables[0], self.part.records, self.part.groups, proof=())
        said = f"{score.metric} {score.value:.4g}, {score.verdict}"
        return Answers(score.verdict is not Verdict.FAILS, said, snr, error)


def _truth(case: _Case, origin: Backend, given: str | None) -> _Truth:
    """Run the start once on the samples that are compared."""
    fed, indices = case.fed, spread(case.fed.count, _COMPARED)
    with case.start(origin) as worker:
        ready(worker)
        outputs = keep_outputs(worker, indices, case.folder / "expected.stream", _SCORING_S)
    labels = None if fed.labels is None else [fed.labels[k] for k in indices]
    budget, rule = budget_for(given, outputs, labels)
    inputs = Stream(fed.stream).__getitem__
    part = scored_part("search", indices, outputs, budget.metric, fed.labels, fed.groups, inputs)
    return _Truth(part, budget, rule)


def judged(descent: Descent) -> tuple[Interval, Interval | None]:
    """Re-measure the best; when it is not faster after all, the start wins: a ratio of 1."""
    if descent.best != descent.target.backend:
        ratio, cpu = descent.judged()
        if ratio.high < 1:
            return ratio, cpu
        descent.best = descent.target.backend
    return Interval(1.0, 1.0, 1.0), None
