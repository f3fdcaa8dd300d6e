"""Fresh pairs of processes, timed as `optimize` times its finalists, and rows that are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortune.core.backend import Backend
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.core.workload import Workload
from ortune.data import feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.process import Worker, single_model_job
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.measurement.timing.turns import start_in_turn
from ortune.measurement.workloads.latency import Latency


@dataclass(frozen=True)
class Side:
    """One side of a pair: a model on a backend, the stream of its samples, and what drives it."""

    model: Path
    backend: Backend
    stream: Path
    workload: Workload = field(default_factory=Latency)


def stream(model: Path, data: Path, folder: Path) -> Path:
    """Write a folder of samples as the stream that workers read; return its path."""
    return feeds.load_feeds(str(data), read_facts(file.load(model)).inputs, folder).stream


def pairs(
    root: Path, base: Side, others: Sequence[Side], spent: Effort, turn: int = 0
) -> Iterator[Pair]:
    """Yield a pair for each other side against one fresh process of the base.

    Args:
        turn: Of the odd ones the others start first, as in `timing.pairs.fresh_pairs`.

    Raises:
        WorkerFailed: A side does not run.
    """
    sides = (*others, base) if turn % 2 else (base, *others)
    with ExitStack() as stack:
        begun = [stack.enter_context(running(root, side)) for side in sides]
        one = begun.pop(-1 if turn % 2 else 0)
        for two in begun:
            yield time_pair(one, two, spent)


@contextmanager
def running(root: Path, side: Side) -> Iterator[Worker]:
    """Start a side's process, ready; end it afterwards."""
    job = single_model_job(
        side.model, side.backend, side.stream, root, "fresh", workload=side.workload
    )
    with start_in_turn(lambda: Worker(job)) as ((worker, _),):
        yield worker


def logs(pair: Pair) -> list[float]:
    """Return the log-ratio of every block."""
    return [round(float(one), 5) for one in stats.block_logs(pair)]


def interval(found: Interval) -> dict[str, float]:
    """Return an interval as JSON holds it."""
    return {"value": found.value, "low": found.low, "high": found.high}


class Kept:
    """Rows in a file of JSON lines, each on disk when it is made: a stopped run goes on."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        path.touch()

    def rows(self) -> list[dict[str, Any]]:
        """Return what is kept; a last line that was cut off does not count."""
        lines = self._path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        with self._path.open("a") as out:
            out.write(json.dumps(row) + "\n")


def pair_of(block_logs: Sequence[float]) -> Pair:
    """Return a pair of these log-ratios: kept rows are read by the statistics of today."""
    second = 1_000_000_000
    base = Burst((second,), (-1.0,))
    return Pair(
        tuple(Block(base, Burst((round(second * math.exp(one)),), (-1.0,))) for one in block_logs)
    )
