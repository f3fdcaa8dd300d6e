"""Time models on backends side by side in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortune.analysis.benchmark import matrix, rows
from ortune.analysis.benchmark.allocations import allocated
from ortune.analysis.benchmark.crossover import crossovers
from ortune.analysis.benchmark.interleave import (
    Contestant,
    TimedRow,
    contest,
    pairs,
    ratio,
    winner,
)
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.benchmark.result import BenchResult, NoiseVerdict, SelfCheck, Winner
from ortune.analysis.benchmark.runtime_floor import floor
from ortune.core import custom_ops
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.event import Note, Sink, silent
from ortune.core.facts import Facts
from ortune.core.fields import paths
from ortune.core.reading import read_workload
from ortune.core.request import verb
from ortune.core.trial import Interval
from ortune.core.workload import Workload
from ortune.data import given
from ortune.measurement.capabilities import capabilities
from ortune.measurement.machine import noise
from ortune.measurement.machine.energy import energy
from ortune.measurement.timing import stats
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file

ONE = Interval(1.0, 1.0, 1.0)


def run(asked: Bench) -> BenchResult:
    """Time models x backends x levels x threads, at every batch, in one interleaved run."""
    on = (asked.on,) if isinstance(asked.on, str) else asked.on
    equipped = [custom_ops.equipped(one, asked.custom_ops) for one in on]
    chosen = matrix.backends(equipped, asked.threads, asked.levels, asked.sink)
    driven = matrix.batched(read_workload(asked.workload, asked.batch), asked.batches)
    return _run(
        matrix.contestants(paths(asked.models), chosen, driven),
        _Feeding(asked.data, asked.shapes, asked.ranges, max(one.batch for one in driven)),
        seconds=asked.seconds,
        sets=asked.sets,
        self_check=asked.self_check,
        memory_by_node=asked.memory_by_node,
        sink=asked.sink,
    )


bench = verb(Bench, run)


def race(
    contestants: Sequence[tuple[Path, Backend]],
    *,
    data: str | Path | Callable[[], Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batch: int = 0,
    workload: str | Workload = "latency",
    self_check: bool = False,
    seconds: float = 10,
    sets: int = stats.PAIRS,
    sink: Sink = silent,
) -> BenchResult:
    """Time pairs of model and backend as `bench` does; the first is the measure of the others."""
    driven = read_workload(workload, batch)
    group = [Contestant(Path(path), backend, driven) for path, backend in contestants]
    feeding = _Feeding(data, shapes or {}, ranges or {}, driven.batch)
    return _run([group], feeding, seconds=seconds, sets=sets, self_check=self_check, sink=sink)


@dataclass(frozen=True)
class _Feeding:
    """Where samples come from; made-up inputs are given by name for all models together.

    Attributes:
        batch: The largest that is timed: every model must take it.
    """

    data: str | Path | Callable[[], Any] | None
    shapes: Mapping[str, tuple[int, ...]]
    ranges: Mapping[str, tuple[float, float]]
    batch: int

    def streams(self, models: Iterable[Path], root: Path, sink: Sink) -> dict[Path, Path]:
        """Write the samples of every model and return its stream."""
        facts = {path: model_facts.facts(file.load(path)) for path in models}
        every = {one.name for found in facts.values() for one in found.inputs}
        return {
            path: self._stream(found, every, root / f"{count}", sink)
            for count, (path, found) in enumerate(facts.items())
        }

    def _stream(self, facts: Facts, every: Set[str], folder: Path, sink: Sink) -> Path:
        # A name that another model has is that one's; a name that none has is refused.
        others = every - {one.name for one in facts.inputs}
        shapes = {name: shape for name, shape in self.shapes.items() if name not in others}
        ranges = {name: ends for name, ends in self.ranges.items() if name not in others}
        return given.samples(
            self.data,
            facts.inputs,
            folder,
            batch=self.batch,
            shapes=shapes,
            ranges=ranges,
            sink=sink,
        ).stream


def _run(
    groups: Sequence[Sequence[Contestant]],
    feeding: _Feeding,
    *,
    seconds: float,
    sets: int,
    self_check: bool,
    sink: Sink,
    memory_by_node: bool = False,
) -> BenchResult:
    if not all(groups):
        raise BadSettings("there is nothing to time", fix="give a model and a backend")
    first = groups[0][0]
    if sets < 1:
        raise BadSettings(f"{sets} sets of processes measure nothing", fix="give 1 or more")
    models = dict.fromkeys(one.model for group in groups for one in group)
    backends = dict.fromkeys(one.backend for group in groups for one in group)
    meters = energy()
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder)
        streams = feeding.streams(models, root, sink)
        floors = {backend: floor(backend, root / "floor") for backend in backends}
        timed = [[TimedRow(one, streams[one.model]) for one in group] for group in groups]
        if self_check:
            timed[0].append(TimedRow(replace(first, again=True), streams[first.model]))
        before = noise.snapshot()
        contest(timed, root, seconds, meters, sets, lambda k: sink(Note(f"set {k} of {sets}")))
        record = noise.between(before, noise.snapshot())
        held = {
            row.contestant: allocated(row.contestant, row.stream, root, by_node=memory_by_node)
            for group in timed
            for row in group
            if not (row.error or row.contestant.again)
        }
    digests = {path: file.digest(path) for path in models}
    made = [
        rows.row(one, digests[one.contestant.model], meters)
        | {
            "runtime": dict(floors[one.contestant.backend]),
            "allocated": held.get(replace(one.contestant, again=False)),
        }
        for group in timed
        for one in group
    ]
    return result(timed, made, record)


def result(
    groups: Sequence[Sequence[TimedRow]], made: Sequence[dict[str, Any]], record: noise.Record
) -> BenchResult:
    """Judge what was timed.

    Args:
        groups: The rows of every batch.
        made: The JSON of all rows, in the same order.
        record: Of the machine meanwhile.
    """
    ratios = [
        None if r.error else ratio(r, g[0]) if r is not g[0] else ONE for g in groups for r in g
    ]
    again = next((k for k, row in enumerate(made) if row["again"]), None)
    equal = None if again is None else ratios[again]
    every = [pair for g in groups for r in g if not r.error for pair in pairs(r, g[0])]
    judged = noise.judge(record, stats.disturbed(every), equal)
    unclear = judged.too_noisy or _differs(equal)
    offered = capabilities(groups[0][0].contestant.backend)
    winners = []
    start = 0
    for group in groups:
        place = None if unclear else winner(group)
        row = None if place is None else start + place
        winners.append(Winner(made[start]["workload"], made[start]["batch"], row))
        start += len(group)
    return BenchResult(
        rows=tuple(made),
        ratios=tuple(ratios),
        winner=winners[0].row if len(winners) == 1 else None,
        winners=tuple(winners),
        crossovers=() if unclear or len(groups) < 2 else tuple(crossovers(made)),
        self_check=None
        if again is None or equal is None
        else SelfCheck(again, equal, not _differs(equal)),
        machine=offered.machine,
        versions=offered.versions,
        noise=record.readings(),
        judgement=NoiseVerdict(judged.too_noisy, noise.RULE, judged.advice),
    )


def _differs(equal: Interval | None) -> bool:
    return equal is not None and (equal.low > 1 or equal.high < 1)
