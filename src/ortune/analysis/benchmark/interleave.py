"""The contestants of a benchmark, timed in turns by sets of fresh processes, and judged."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ortune.core.acceptance import Outcome
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, describe_placement
from ortune.core.errors import BadModel
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.hub import HubFolder
from ortune.core.result import TableResult
from ortune.core.trial import Burst, Interval, Pair
from ortune.core.workload import Span, Workload
from ortune.measurement.machine import noise
from ortune.measurement.machine.counters import Energy
from ortune.measurement.machine.noise import Advice
from ortune.measurement.process import (
    PROGRAM,
    Worker,
    WorkerFailed,
    query_capabilities,
    single_model_job,
)
from ortune.measurement.timing import stats
from ortune.measurement.timing.turns import (
    WarmTimes,
    iterate_blocks,
    request_burst,
    size_bursts,
    wait_until_ready,
    warm_up,
)

_SHOWN = (
    *("model", "backend", "environment", "workload", "batch", "again", "typical_ns"),
    *("p50_ns", "per_second", "error"),
)

_RATIO = {"ratio": "value", "low": "low", "high": "high"}

PER_FRAME = "time per frame"
"""What an entry is of a row that has the user's frame around the model."""


@dataclass(frozen=True)
class Winner:
    """The fastest row of a batch, by its index; None inside the noise."""

    workload: str
    batch: int
    row: int | None


@dataclass(frozen=True)
class SelfCheck:
    """The first row timed against itself."""

    row: int  # the index of the second one
    ratio: Interval
    equal: bool  # whether the ratio's interval holds 1


@dataclass(frozen=True)
class NoiseVerdict:
    """Whether the machine was quiet enough."""

    too_noisy: bool
    rule: str
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class Pipeline:
    """A model inside the user's frame: pre-processing, the engine, post-processing.

    Times and rates are None, and so are ratios, where a row failed.
    """

    row: int  # index of the row of whole frames
    model_row: int  # index of the row of the calls that a frame makes of the engine, without it
    frames_per_s: float | None
    model_per_s: float | None  # as many as the model alone would do
    share: Interval | None  # of a frame's time, what the model alone takes, at 99 %
    ratio: Interval | None  # a frame's time over that of the first model's frame, at 99 %
    model_ratio: Interval | None  # the same of the model alone


@dataclass(frozen=True, repr=False)
class BenchResult(TableResult):
    """Models timed on backends side by side.

    Attributes:
        rows: What was measured of each contestant, raw nanoseconds included; see ``docs/cli.md``.
        ratios: Of each row's latency to that of the first row of its batch, at 99 %; None for one
            that failed.
        winner: Index of the fastest; None inside the noise, or with several batches.
        self_check: None when it was not asked for.
        machine: What the times hold for.
        versions: Of the runtimes where the first row ran.
        counts: How many rows came to what beside the first of their batch, in words.
        environments: Name -> versions of the runtimes there.
        pipelines: With a frame: what the models' speed is worth inside of it.
    """

    rows: tuple[Mapping[str, Any], ...]
    ratios: tuple[Interval | None, ...]
    winner: int | None
    winners: tuple[Winner, ...]
    self_check: SelfCheck | None
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    noise: Mapping[str, Any]
    judgement: NoiseVerdict
    counts: Mapping[str, int] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pipelines: tuple[Pipeline, ...] = ()

    def summary(self) -> Mapping[str, object]:
        fastest = [
            "none" if winner.row is None else f"{row['model']} on {describe_placement(row)}"
            for winner in self.winners
            for row in [self.rows[winner.row or 0]]
        ]
        fastest_text, noisy = ", ".join(fastest), self.judgement.too_noisy
        return {"fastest": fastest_text, "rows": len(self.rows), "too noisy": noisy}

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return a row's key figures and its ratio, with the ends of its interval."""
        return [
            {name: row.get(name) for name in _SHOWN}
            | {end: ratio and getattr(ratio, of) for end, of in _RATIO.items()}
            for row, ratio in zip(self.rows, self.ratios, strict=True)
        ]


def judge_rows(
    groups: Sequence[Sequence[TimedRow]],
    row_records: Sequence[dict[str, Any]],
    record: noise.Record,
) -> BenchResult:
    """Judge what was timed: the rows of every batch, and their JSON in the same order."""
    rows = [row for group in groups for row in group]
    stand = Ratios(groups)
    ratios = [
        None if row.error else stand.estimate_ratio(row, group[0]) if row is not group[0] else ONE
        for group in stand.groups
        for row in group
    ]
    again = next((k for k, row in enumerate(row_records) if row["again"]), None)
    equal = None if again is None else ratios[again]
    timed = [pair for g in groups for r in g if not r.error for pair in pair_blocks(r, g[0])]
    pairs = zip(ratios, row_records, strict=True)
    claimed = any(r is not None and r.clear for r, row in pairs if not row["again"])
    reach = stats.half_width(stand.pool_variance(), max(1, len(rows[0].turns)))
    judged = noise.judge_noise(
        record,
        stats.compute_disturbed_share(timed),
        equal,
        unusable=(stats.count_unusable(timed), len(timed)),
        reach=reach,
        claimed=claimed,
    )
    first = groups[0][0].contestant
    offered = query_capabilities(first.backend, first.environment)
    places = dict.fromkeys(timed_row.contestant.environment for timed_row in rows)
    winners = []
    start = 0
    for group in groups:
        place = None if judged.too_noisy else stand.find_winner(group)
        row = None if place is None else start + place
        winners.append(Winner(row_records[start]["workload"], row_records[start]["batch"], row))
        for k in range(start, start + len(group)):
            if (ratio := ratios[k]) is not None:
                row_records[k]["typical_ns"] = row_records[start]["p50_ns"] * ratio.value
        start += len(group)
    return BenchResult(
        rows=tuple(row_records),
        ratios=tuple(ratios),
        winner=winners[0].row if len(winners) == 1 else None,
        winners=tuple(winners),
        self_check=None
        if again is None or equal is None
        else SelfCheck(again, equal, not equal.clear),
        machine=offered.machine,
        versions=offered.versions,
        environments={name: query_capabilities(first.backend, name).versions for name in places},
        noise=record.format_readings(),
        judgement=NoiseVerdict(judged.too_noisy, noise.RULE, judged.advice),
        counts=stand.count_outcomes(),
    )


_BLOCKS = (4, 30)
_BURST_S = (0.06, 0.3)
"""Of many contestants in little time, and of few in much."""

T = TypeVar("T")


@dataclass(frozen=True)
class Contestant:
    """What is timed: a model on a backend under a workload."""

    model: Path
    backend: Backend
    workload: Workload
    # It is the first contestant once more, to see what the machine calls equal.
    again: bool = False
    environment: str = HERE
    # What a process runs: a module, and words behind the job's file.
    program: tuple[str, ...] = PROGRAM
    title: str = ""  # what its rows call the model; the path without one
    settings: HubFolder | None = None  # what came with the model from its folder


@dataclass
class TimedRow:
    """One contestant and everything measured of it; lists hold one entry a set."""

    contestant: Contestant
    stream: Path
    load_ns: list[int] = field(default_factory=list)
    first_ns: list[int] = field(default_factory=list)
    # ``cold`` or ``warm`` where engines are built: see `StartupTimes`.
    caches: list[str] = field(default_factory=list)
    placement: Mapping[str, int] = field(default_factory=dict)
    footprints: list[Mapping[str, Any]] = field(default_factory=list)
    # Joined bursts of every block of a set: both halves of A .. A.
    turns: list[list[Burst]] = field(default_factory=list)
    cpu_ns: int = 0  # CPU time of all threads within bursts
    # Energy counter -> joules within bursts, of the whole package or board.
    joules: dict[str, float] = field(default_factory=dict)
    runs: int = 0  # runs within bursts, warm-up runs before an entry included
    # CPU time that threads went on spinning after a burst; one entry a burst.
    spin_ns: list[int] = field(default_factory=list)
    # What bursts told for `Workload.results`.
    details: list[Mapping[str, Any]] = field(default_factory=list)
    # Computing alone on a device with memory of its own, a figure a round.
    compute_ns: list[int] = field(default_factory=list)
    # What the GPUs said of themselves directly after that.
    gpus: list[Mapping[str, Any]] = field(default_factory=list)
    error: str = ""

    @property
    def latency_ns(self) -> list[int]:
        """All entries, raw."""
        return [ns for turn in self.turns for block in turn for ns in block.latency_ns]


def run_contest(
    groups: Sequence[Sequence[TimedRow]],
    root: Path,
    seconds: float,
    energy: Energy,
    sets: int,
    sink: Sink = ignore_event,
) -> None:
    """Time every row; those of one group in turns, the groups one after another in every set.

    Args:
        groups: Rows that are compared with each other; the first of a group is its measure.
        seconds: Time for timing; a set of a group has four blocks at least.
        sets: Sets of fresh processes: a process has an effect of its own on its latency.
        sink: Receives how far the timing is, between blocks.

    Raises:
        BadModel: The first row of a group does not run.
    """
    total = sets * len(groups)
    for turn in range(sets):
        for place, rows in enumerate(groups):
            before = turn * len(groups) + place

            def tell(share: float, before: int = before) -> None:
                sink(Progress("timing", before + share, total))

            with ExitStack() as stack:
                _Set(rows, root, energy, stack, tell, sink).run(
                    seconds / total, backwards=turn % 2 == 1
                )


def pair_blocks(row: TimedRow, base: TimedRow) -> list[Pair]:
    """Return the blocks of two rows of a group as pairs, a pair a set."""
    return list(map(Pair.of, base.turns, row.turns))


@dataclass(eq=False)
class _Set:
    """Live processes, one a row. A row whose process fails keeps the reason and drops out."""

    rows: Sequence[TimedRow]
    root: Path
    energy: Energy
    stack: ExitStack
    tell: Callable[[float], None]
    sink: Sink
    live: dict[int, Worker] = field(default_factory=dict)

    def run(self, seconds: float, *, backwards: bool = False) -> None:
        """Start a process a row, or `backwards` (see `timing.pairs.fresh_pairs`), and time all."""
        self.tell(0.0)
        self._act_on_rows(self._start_worker, backwards=backwards)
        warmed = dict(self._act_on_rows(lambda index: (index, self._warm_worker(index))))
        share = seconds / (2 * _BLOCKS[0] * len(warmed))
        self._time_blocks(size_bursts(warmed, min(max(_BURST_S[0], share), _BURST_S[1])), seconds)
        self._act_on_rows(self._collect_readings)

    def _act_on_rows(self, act: Callable[[int], T], *, backwards: bool = False) -> list[T]:
        """Act on every row that runs, in order, and return what those that still run gave."""
        order = [index for index, row in enumerate(self.rows) if not row.error]
        outcomes = [self._try_row(act, index) for index in (order[::-1] if backwards else order)]
        return [outcome for outcome in outcomes if outcome is not None]

    def _try_row(self, act: Callable[[int], T], index: int) -> T | None:
        """Act on a row, or note why its process fails; what fails in the first row is raised."""
        try:
            return act(index)
        except WorkerFailed as error:
            self.rows[index].error = error.failure.reason
            if index:
                return None
            contestant = self.rows[0].contestant
            fix = error.failure.fix or "check the model, the data and the backend"
            if contestant.workload.batch > 1:
                fix = "leave --batch out: the model may take only one sample per run"
            problem = f"{contestant.model} does not run on {contestant.backend}"
            raise BadModel(f"{problem}: {error.failure.reason}", fix=fix) from None

    def _start_worker(self, index: int) -> None:
        """Load and run once, while no other process starts.

        Its first process builds the engines of a provider that has any, the others find them.
        """
        row, who = self.rows[index], self.rows[index].contestant
        job = single_model_job(
            who.model,
            who.backend,
            row.stream,
            self.root,
            "bench",
            workload=who.workload,
            environment=who.environment,
            engines=self.root / "engines" / f"{index}-{who.workload.batch}",
        )
        worker = Worker(job, program=who.program, sink=self.sink)
        self.live[index] = self.stack.enter_context(worker)
        started = wait_until_ready(worker)
        row.load_ns.append(started.load_ns)
        row.first_ns.append(started.first_ns)
        row.caches += [started.cache] if started.cache else []
        row.placement = started.placement

    def _warm_worker(self, index: int) -> WarmTimes:
        """Run until latencies settle; what the workload tells of it is dropped."""
        warmed = warm_up(self.live[index])
        self.live[index].ask("details")
        return warmed

    def _collect_readings(self, index: int) -> None:
        row, worker = self.rows[index], self.live[index]
        row.footprints.append(worker.ask("footprint"))
        row.details += worker.ask("details")["details"]
        apart = worker.ask("device")
        row.compute_ns += apart["compute_ns"]
        row.gpus += apart["gpus"]

    def _time_blocks(self, sizes: Mapping[int, Span], seconds: float) -> None:
        fewest, most = _BLOCKS
        began = time.monotonic()
        for row in self.rows:
            row.turns.append([])

        def time_burst(index: int, size: Span) -> Burst | None:
            return self._try_row(lambda index: self._measure_burst(index, size), index)

        for turn, bursts in enumerate(iterate_blocks(sizes, time_burst), 1):
            for index, joined in bursts.items():
                self.rows[index].turns[-1].append(joined)
            spent = time.monotonic() - began
            self.tell(min(1.0, spent / seconds))
            if turn >= most or (turn >= fewest and spent > seconds):
                break

    def _measure_burst(self, index: int, size: Span) -> Burst:
        """Run a burst and add up what it used; return when its threads no longer spin."""
        row, worker = self.rows[index], self.live[index]
        power, before = self.energy.read(), worker.ask("usage")
        timed = request_burst(worker, size)
        after = worker.ask("usage")
        for name, joules in self.energy.compute_joules(power, self.energy.read()).items():
            row.joules[name] = row.joules.get(name, 0.0) + joules
        row.cpu_ns += after["cpu_ns"] - before["cpu_ns"]
        row.runs += after["runs"] - before["runs"]
        row.spin_ns.append(worker.ask("wait_idle")["cpu_ns"])
        return timed


ONE = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Ratios:
    """The rows of every batch; the first of a batch is its measure.

    How far pairs differ is learnt from all rows of the run: those of one batch share the first
    row's processes, and the first row once more is known to be its equal.
    """

    groups: Sequence[Sequence[TimedRow]]

    def pool_variance(self, *but: TimedRow) -> stats.PooledVariance:
        """Return what all rows but some tell about how far pairs differ."""
        variance = stats.NOTHING
        for first, *candidates in self.groups:
            excluded = [row.error or any(row is item for item in but) for row in candidates]
            rows = [row for row, is_out in zip(candidates, excluded, strict=True) if not is_out]
            groups = [pair_blocks(row, first) for row in rows if not row.contestant.again]
            equal = [
                pair for row in rows if row.contestant.again for pair in pair_blocks(row, first)
            ]
            variance += stats.PooledVariance.pool(groups, equal, one_baseline=True)
        return variance

    def estimate_ratio(self, row: TimedRow, base: TimedRow) -> Interval:
        """Return the latency of one row over that of another of its batch."""
        return stats.latency_ratio(pair_blocks(row, base), learnt=self.pool_variance(row, base))

    def count_outcomes(self) -> dict[str, int]:
        """Count the rows by how they stand to the first of their batch, in words."""
        rows = (row for group in self.groups for row in group[1:] if not row.contestant.again)
        tally = Counter(self._name_outcome(row) for row in rows)
        words = ("faster", Outcome.LEVEL, Outcome.DISTURBED, Outcome.SLOWER, Outcome.FAILED)
        return {str(word): tally[word] for word in words}

    def _name_outcome(self, row: TimedRow) -> str:
        if row.error:
            return Outcome.FAILED
        first = next(group[0] for group in self.groups if any(row is member for member in group))
        ratio = self.estimate_ratio(row, first)
        if math.isinf(ratio.high):
            return Outcome.DISTURBED
        if not ratio.clear:
            return Outcome.LEVEL
        return "faster" if ratio.high < 1 else Outcome.SLOWER

    def find_winner(self, rows: Sequence[TimedRow]) -> int | None:
        """Return the index of the row that beats every other beyond the noise, if there is one."""
        alive = [k for k, row in enumerate(rows) if not row.error and not row.contestant.again]
        if len(alive) < 2:
            return None
        first = rows[alive[0]]
        best = min(alive, key=lambda k: self.estimate_ratio(rows[k], first).value)
        beaten = all(self.estimate_ratio(rows[best], rows[k]).high < 1 for k in alive if k != best)
        return best if beaten else None
