"""Several processes of one model against one process with as many instances of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from ortune.analysis.benchmark import matrix
from ortune.analysis.benchmark.engines.timed import timed
from ortune.analysis.benchmark.interleave import Contestant, TimedRow
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.benchmark.result import BenchResult, SideBySide
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.fields import paths
from ortune.core.trial import Burst, Interval, Pair
from ortune.data import given
from ortune.measurement.timing import stats
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file
from ortune.workloads.throughput import Throughput

_WORKER = ("ortune.analysis.benchmark.engines.worker",)
_BURSTS = 2
"""Of a block: before and after the others."""


def run(asked: Bench, chosen: Sequence[Backend], environments: Sequence[str]) -> BenchResult:
    """Time every model on every backend three ways, in turns.

    One process with an engine of N instances; N processes with an engine of one; one alone.
    """
    count, batch = asked.processes, asked.batch
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder)
        groups = []
        for place, path in enumerate(paths(asked.models)):
            feeds = given.samples(
                asked.data,
                model_facts.facts(file.load(path)).inputs,
                root / f"{place}",
                batch=batch,
                shapes=asked.shapes,
                ranges=asked.ranges,
                sink=asked.sink,
            ).stream
            workload = Throughput(batch=batch, sessions=1)
            ((*every,),) = matrix.contestants([path], chosen, [workload], environments)
            groups += [[TimedRow(one, feeds) for one in _ways(way, count, batch)] for way in every]
        found = timed(groups, [[(row, _told(row)) for row in g] for g in groups], asked, root)
    latencies = {id(row): _latencies(row) for group in groups for row in group if not row.error}
    made = _side_by_side(found, groups, latencies)
    return replace(found, side_by_side=tuple(made), crossovers=())


def _ways(one: Contestant, count: int, batch: int) -> list[Contestant]:
    """Return one process with `count` instances, `count` with one, and one alone."""
    alone = replace(one, program=_WORKER, processes=1)
    together = Throughput(batch=batch, sessions=count)
    return [replace(alone, workload=together), replace(alone, processes=count), alone]


def _told(row: TimedRow) -> dict[str, object]:
    processes = row.contestant.processes
    text = str(row.contestant.workload)
    several = wording.count(processes, "process", "processes")
    return {
        "processes": processes,
        "workload": text if processes == 1 else f"{text} in {several}",
    }


def _side_by_side(
    found: BenchResult,
    groups: Sequence[Sequence[TimedRow]],
    latencies: dict[int, list[list[Burst]]],
) -> Iterator[SideBySide]:
    at = 0
    for group in groups:
        for row in group:
            latency: Interval | None = None
            if row is not group[0] and not row.error:
                of_first, own = latencies[id(group[0])], latencies[id(row)]
                latency = stats.ratio(list(map(Pair.of, of_first, own)))
            reported = found.rows[at]["reported"]
            workload = row.contestant.workload
            yield SideBySide(
                at,
                row.contestant.processes,
                workload.lanes(1),
                reported.get("throughput_per_s"),
                reported.get("run_p50_ns"),
                reported.get("run_p99_ns"),
                found.ratios[at],
                latency,
            )
            at += 1


def _latencies(row: TimedRow) -> list[list[Burst]]:
    """Return the median run of every burst, by set and block as the turns are."""
    told = iter(row.details)
    made = []
    for turn in row.turns:
        blocks = []
        for block in turn:
            taken = [round(median(next(told)["runs_ns"])) for _ in range(_BURSTS)]
            waited = (block.waited[0], block.waited[-1])
            blocks.append(Burst(tuple(taken), waited, alike=True))
        made.append(blocks)
    return made
