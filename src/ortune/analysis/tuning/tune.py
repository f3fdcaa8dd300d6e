"""The runtime settings that a model runs fastest with: coordinate descent by paired tests.

It is no search with a fixed recipe, for what it promises a search does not keep. Waiting for a CPU
is part of what settings change, so entries that a neighbour disturbed count in its steps; where a
neighbour was asked for, also in what is claimed. Every value is tried, against the best so far,
and not what is expected to gain. Settings that change numbers are tried on made-up inputs too,
and those that no run may store.
"""

import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from ortune.analysis.tuning.requests import Tune
from ortune.core import hub
from ortune.core.acceptance import Outcome
from ortune.core.atomic_write import write_text
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadModel
from ortune.core.event import Note, Progress, Sink, TimeLeft, ignore_event
from ortune.core.facts import Facts
from ortune.core.outputs import check_output_file
from ortune.core.plugins import codec
from ortune.core.plugins.plugin import spell_value
from ortune.core.plugins.spelling import parse_given
from ortune.core.python_process import make_python_command
from ortune.core.reading import read_workload
from ortune.core.request import make_verb
from ortune.core.result import TableResult, as_json
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Block, Burst, Interval, Pair, Verdict
from ortune.core.wording import format_duration, shorten_groups
from ortune.core.workload import spread_indices
from ortune.data import synthetic
from ortune.data.classes import read_classes
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.accuracy import EXACT_DB, judge_accuracy
from ortune.measurement.machine import noise
from ortune.measurement.process import (
    Worker,
    WorkerFailed,
    keep_outputs,
    require_backend,
    single_model_job,
)
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, claim_effort, fresh_pairs
from ortune.measurement.timing.turns import start_in_turn, wait_until_ready
from ortune.metrics.max_error import MaxError
from ortune.metrics.snr import Snr
from ortune.search.experiment.budget import budget_for
from ortune.search.experiment.context import ScoredPart, make_scored_part
from ortune.search.experiment.scores import collect_records
from ortune.search.recipe.descent import GAIN, walk_coordinates
from ortune.search.recipe.space import SearchTarget

_ROUNDS = 2
_MOST_PAIRS = 5
"""Fresh pairs of processes at most behind a setting; two at least behind one that is kept."""
PROMISING = 0.95
"""Beyond two pairs, undecided settings are timed on only if they may gain this."""
_FINAL_SHARE = 0.25
"""Of the time: the winner is measured against the start in fresh pairs."""
_CPU_RUNS = 0.3
"""Seconds of running behind a figure of CPU time."""
_COMPARED = 32
"""Samples whose outputs are compared."""
_SCORING_S = 300.0


@dataclass(frozen=True)
class Answers:
    """How outputs stand to those of the start: equal or within the budget, and SNR, dB."""

    fine: bool
    said: str
    snr: float
    max_error: float


@dataclass(frozen=True)
class Attempt:
    """One value of one setting, and what became of it."""

    setting: str  # the field, or another name of the coordinate
    value: str  # the fields that it changes, as they are spelled
    backend: str  # all settings of the candidate, spelled
    # Its latency over that of the best before it; None when it did not run.
    ratio: Interval | None = None
    kept: bool = False  # it became the best
    why: str = ""
    answers: Answers | None = None  # compared only when it was faster

    @property
    def outcome(self) -> Outcome:
        """What the value may be called by its interval."""
        if self.ratio is None:
            return Outcome.FAILED
        if math.isinf(self.ratio.high):
            return Outcome.DISTURBED
        if not self.ratio.clear:
            return Outcome.LEVEL
        if self.answers is not None and not self.answers.fine:
            return Outcome.FAILS
        return Outcome.FASTER if self.ratio.high < 1 else Outcome.SLOWER

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f" {self.ratio}"
        return f"{self.value}:{ratio} {'kept' if self.kept else 'not kept'}: {self.why}"


@dataclass(frozen=True, repr=False)
class TuneResult(TableResult):
    """The settings that a model runs fastest with.

    Attributes:
        changed: The fields that differ from the start.
        improved: Whether anything was faster beyond the noise.
        ratio: Of the latencies, best over start, in fresh pairs.
        cpu_ratio: Of the CPU time per inference, spinning included.
        finished: Whether all was tried: ``done``, or ``time``.
        denormals: Share of the weights that are denormal.
        beside_load: Cores that were kept busy meanwhile.
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


@dataclass
class Descent:
    """A running descent."""

    target: SearchTarget
    facts: Facts
    start: Callable[[Backend], Worker]  # starts a worker of these settings, not loaded yet
    # Compares a live worker's outputs with those of the start.
    compare: Callable[[Worker, Backend], Answers]
    seconds: float  # time for all steps and the final pairs
    waiting: bool = False  # entries that waited for a CPU count in what is claimed
    sink: Sink = ignore_event
    attempts: list[Attempt] = field(default_factory=list)
    finished: str = "done"
    untried: int = 0  # values of settings that were left for lack of time

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._costs: list[float] = []
        self.timed: list[list[Pair]] = []
        self.best = self.target.backend
        self._pair_s = min(4.0, max(1.0, self.seconds / 40))

    def run(self) -> None:
        """Go through the settings until a round changes nothing."""
        for _ in range(_ROUNDS):
            before = self.best
            self._run_round()
            if self.best == before or self.finished != "done":
                break

    def _run_round(self) -> None:
        with ExitStack() as stack:
            ((best, _),) = stack.enter_context(start_in_turn(partial(self.start, self.best)))
            tried = {attempt.backend for attempt in self.attempts}
            steps = walk_coordinates(
                lambda: self.best, partial(self.target.list_coordinates, facts=self.facts)
            )
            for setting, candidate in steps:
                if str(candidate) in tried:
                    continue
                if self._is_late():
                    self.finished = "time"
                    self.untried = 1 + sum(str(other) not in tried for _, other in steps)
                    return
                attempt = self._try_candidate(best, setting, candidate)
                self.attempts.append(attempt)
                self.sink(Note(str(attempt)))
                if attempt.kept:
                    self.best = candidate
                    stack.close()
                    ((best, _),) = stack.enter_context(
                        start_in_turn(partial(self.start, candidate))
                    )

    def _is_late(self) -> bool:
        """Whether what is left of the time belongs to the final pairs, if there will be any."""
        reserve = 0.0
        if self.best != self.target.backend:
            reserve = max(_FINAL_SHARE * self.seconds, 1.5 * stats.PAIRS * fmean(self._costs))
        return time.monotonic() - self._began > self.seconds - reserve

    def _try_candidate(self, best: Worker, setting: str, candidate: Backend) -> Attempt:
        """Time a candidate in pairs until the answer is clear; compare its outputs once.

        The first pair is against the live process of the best. Each further one is fresh: what
        one process of the best is quicker or slower by would be in all pairs.
        """
        tried = Attempt(setting, format_changes(self.best, candidate), str(candidate))
        pairs: list[Pair] = []
        self.timed.append(pairs)
        starts = (partial(self.start, self.best), partial(self.start, candidate))
        fresh = fresh_pairs(*starts, _MOST_PAIRS, Effort(seconds=self._pair_s), first=best)
        began = time.monotonic()
        try:
            with closing(fresh):
                self._report_progress(setting)
                for live_pair in fresh:
                    pairs.append(self._include_waiting(live_pair.pair))
                    ratio = stats.latency_ratio(pairs)
                    tried = replace(tried, ratio=ratio)
                    self._report_progress(setting)
                    if ratio.low > 1 or ratio.value > (PROMISING if len(pairs) > 1 else GAIN):
                        break
                    answers = tried.answers or self.compare(live_pair.candidate, candidate)
                    tried = replace(tried, answers=answers)
                    self._costs.append(time.monotonic() - began)
                    if not answers.fine:
                        return replace(tried, why=f"cannot be kept: {answers.said}")
                    if len(pairs) > 1 and (ratio.high < 1 or self._is_late()):
                        break
                    began = time.monotonic()
        except BaselineFailed:
            raise
        except WorkerFailed as error:
            return replace(tried, why=f"does not run: {error.failure.reason}")
        if ratio.low > 1:
            return replace(tried, answers=None, why=f"slower: {ratio.value:.3f}")
        if ratio.high >= 1:
            return replace(tried, answers=None, why=str(tried.outcome))
        if ratio.value > GAIN:
            why = f"gains less than {100 * (1 - GAIN):.0f} %"
            return replace(tried, answers=None, why=why)
        return replace(
            tried, kept=True, why=f"{100 * (1 - ratio.value):.0f} % less time, {answers.said}"
        )

    def _report_progress(self, setting: str) -> None:
        spent = time.monotonic() - self._began
        self.sink(Progress(f"trying {setting}", spent, self.seconds))

    def confirm_best(self) -> tuple[Interval, Interval | None]:
        """Return latency and CPU time of the best over those of the start, in fresh pairs.

        As many pairs, as long, and the same interval as behind a claim of a search. CPU time is
        that of all threads, spinning after a run included; its ends are the least and the most of
        the pairs. Where the best is not faster after all, the start is the best: a ratio of 1.
        """
        same = Interval(1.0, 1.0, 1.0)
        if self.best == self.target.backend:
            return same, None
        pairs: list[Pair] = []
        shares: list[float] = []
        starts = (partial(self.start, self.target.backend), partial(self.start, self.best))
        fresh = fresh_pairs(*starts, stats.PAIRS, claim_effort(self._pair_s))
        with closing(fresh):
            for live_pair in fresh:
                pairs.append(self._include_waiting(live_pair.pair))
                sample = [
                    ns for block in live_pair.pair.blocks for ns in block.baseline.latency_ns
                ]
                runs = max(2, min(2000, int(_CPU_RUNS * 1e9 * len(sample) / max(1, sum(sample)))))
                base = max(1, cpu_ns(live_pair.baseline, runs))
                shares.append(cpu_ns(live_pair.candidate, runs) / base)
        ratio = stats.latency_ratio(pairs, learnt=stats.PooledVariance.pool(self.timed))
        self.timed.append(pairs)
        if ratio.high >= 1:
            self.best = self.target.backend
            return same, None
        shares.sort()
        return ratio, Interval(shares[len(shares) // 2], shares[0], shares[-1])

    def judge_machine(self, record: noise.Record) -> noise.Judgement:
        """Say by all pairs whether the machine could be trusted meanwhile."""
        pairs = [pair for group in self.timed for pair in group]
        return noise.judge_noise(
            record,
            stats.compute_disturbed_share(pairs),
            unusable=(stats.count_unusable(pairs), len(pairs)),
            reach=stats.half_width(stats.PooledVariance.pool(self.timed)),
            claimed=self.best != self.target.backend,
        )

    def _include_waiting(self, pair: Pair) -> Pair:
        """Return a pair in which every entry counts, waiting included, if `waiting`.

        Where most entries waited, a run takes either its own time or a neighbour's time slice
        more: the mean of a burst then says what its median hides.
        """
        if not self.waiting:
            return pair
        averaged = stats.compute_disturbed_share([pair]) > 0.5

        def side(burst: Burst) -> Burst:
            if not averaged:
                return replace(burst, waited=(-1.0,) * len(burst.waited))
            runs = burst.runs_each * len(burst.latency_ns)
            return Burst((round(fmean(burst.latency_ns)),), (-1.0,), runs)

        blocks = (Block(side(block.baseline), side(block.candidate)) for block in pair.blocks)
        return Pair(tuple(blocks))


def cpu_ns(worker: Worker, runs: int) -> int:
    """Return CPU nanoseconds of all threads for a number of runs and what they spin afterwards."""
    worker.ask("wait_idle")
    before = worker.ask("usage")["cpu_ns"]
    worker.ask("burst", at=0, runs=runs)
    worker.ask("wait_idle")
    return int(worker.ask("usage")["cpu_ns"] - before)


def format_changes(base: Backend, other: Backend) -> str:
    """Return the fields in which a backend differs, as they are spelled."""
    values = {f.name: getattr(other, f.name) for f in fields(other)}
    differing = (name for name in values if getattr(base, name) != values[name])
    return ", ".join(f"{name}={spell_value(values[name])}" for name in differing)


def compare_answers(budget: Budget, part: ScoredPart, worker: Worker, backend: Backend) -> Answers:
    """Compare a loaded worker's outputs: equal to 80 dB, or within the budget if lossy."""
    metrics = [budget.metric, Snr(), MaxError()]
    tables = collect_records(worker, metrics, part, _SCORING_S)
    snr, error = metrics[1].aggregate(tables[1]), metrics[2].aggregate(tables[2])
    if snr >= EXACT_DB:
        return Answers(True, "the same outputs", snr, error)
    if not backend.lossy:
        return Answers(False, f"its outputs differ: {snr:.0f} dB", snr, error)
    score = judge_accuracy(budget, tables[0], part.records, part.groups, proof=())
    description = f"{shorten_groups(score.metric)} {score.value:.4g}, {score.verdict}"
    return Answers(score.verdict is not Verdict.FAILS, description, snr, error)


def _prepare_scoring(
    worker: Worker, feeds: Feeds, budget: Budget | None, folder: Path
) -> tuple[ScoredPart, Budget, str]:
    """Run the start once; return the samples that are compared, the budget and its rule."""
    indices = spread_indices(feeds.count, _COMPARED)
    with worker:
        wait_until_ready(worker)
        outputs = keep_outputs(worker, indices, folder / "expected.stream", _SCORING_S)
    labels = None if feeds.labels is None else [feeds.labels[k] for k in indices]
    budget, rule = budget_for(budget, outputs, labels, Stream(feeds.stream)[indices[0]])
    part = make_scored_part(
        "search",
        indices,
        outputs,
        budget.metric,
        labels=feeds.labels,
        groups=feeds.groups,
        inputs=Stream(feeds.stream).__getitem__,
    )
    return part, budget, rule


def run(request: Tune) -> TuneResult:
    """Descend over a backend's settings by paired tests.

    Fields given in `on` are pinned; what changes numbers keeps the budget, all else the outputs.
    """
    out = request.out and check_output_file(request.out, request.force, request.model)
    origin, pinned = parse_given(Backend, request.backends)
    offered = require_backend(origin)
    path, workload = Path(request.model), read_workload(request.workload, request.batch)
    facts, before = model_facts.read_facts(file.load(path), read=True), noise.take_snapshot()
    with open_temporary_folder() as folder, keep_cores_busy(int(request.beside_load)):
        feeds = synthetic.load_or_generate_feeds(
            request.data,
            facts.inputs,
            folder,
            labels=request.labels,
            batch=workload.batch,
            shapes=request.shapes,
            ranges=request.ranges,
            classes=read_classes(facts.metadata),
            settings=hub.find_folder(path),
            sink=request.sink,
        )

        def start(backend: Backend) -> Worker:
            job = single_model_job(path, backend, feeds.stream, folder, "tune", workload=workload)
            return Worker(job)

        try:
            limit = request.read_budget()
            part, budget, rule = _prepare_scoring(start(origin), feeds, limit, folder)
            request.sink(Note(f"--time: {format_duration(request.time)}"))
            request.sink(TimeLeft(request.time))
            target = SearchTarget(origin, offered, pinned, workload.splits(offered.effective_cpus))
            compare = partial(compare_answers, budget, part)
            limits = request.time, bool(request.beside_load)
            descent = Descent(target, facts, start, compare, *limits, request.sink)
            descent.run()
            stepped_to, (ratio, cpu_ratio) = descent.best, descent.confirm_best()
        except WorkerFailed as error:
            fix = error.failure.fix or "check the model and the data"
            raise BadModel(
                f"{path} does not run on {origin}: {error.failure.reason}",
                fix=f"{fix}; again alone: {error.failure.reproduce}",
            ) from None
    record, best = noise.compare_snapshots(before, noise.take_snapshot()), descent.best
    machine = descent.judge_machine(record)
    outcomes = [attempt.outcome for attempt in descent.attempts]
    counts = {str(o): outcomes.count(o) for o in Outcome if o is not Outcome.UNTRIED}
    result = TuneResult(
        start=str(origin),
        best=str(best),
        settings=codec.encode(best),
        changed=format_changes(origin, best),
        improved=best != origin,
        lossy=best.lossy,
        ratio=ratio,
        cpu_ratio=cpu_ratio,
        finished=descent.finished,
        attempts=tuple(descent.attempts),
        model=str(path),
        workload=str(workload),
        cpus=offered.effective_cpus,
        denormals=facts.denormals,
        budget=str(budget),
        budget_rule=rule,
        samples=len(part.indices),
        synthetic=feeds.synthetic,
        beside_load=int(request.beside_load),
        machine=offered.machine,
        versions=offered.versions,
        noise=record.format_readings(),
        unconfirmed="" if stepped_to == best else str(stepped_to),
        counts=counts | {str(Outcome.UNTRIED): descent.untried},
        too_noisy=machine.too_noisy,
        advice=tuple(map(str, machine.advice)),
    )
    if out:
        write_text(out, as_json(result, indent=1) + "\n")
    return result


tune = make_verb(Tune, run)


_CODE = (
    "import os, sys, threading\n"
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n"
    "while True: sum(range(10_000))"
)
"""The closed pipe ends it when this process goes, however it goes."""


@contextmanager
def keep_cores_busy(cores: int = 1) -> Iterator[None]:
    """Keep cores busy meanwhile, one process each; 0 is no neighbour."""
    started = [
        subprocess.Popen(make_python_command("-c", _CODE, isolated=True), stdin=subprocess.PIPE)
        for _ in range(cores)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()
