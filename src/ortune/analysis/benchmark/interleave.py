"""The contestants of a benchmark, timed in turns by sets of fresh processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.event import Progress, Sink, silent
from ortune.core.trial import Burst, Pair
from ortune.core.workload import Span, Workload
from ortune.measurement.machine.energy import Energy
from ortune.measurement.process import PROGRAM, Worker, WorkerFailed, lone
from ortune.measurement.timing.turns import Warmed, blocks, burst, pace, ready, warm

_BLOCKS = (4, 30)
_BURST_S = (0.06, 0.3)
"""Of many contestants in little time, and of few in much."""

T = TypeVar("T")


@dataclass(frozen=True)
class Contestant:
    """What is timed: a model on a backend under a workload.

    Attributes:
        again: It is the first contestant once more, to see what the machine calls equal.
        environment: Where its processes run.
        program: What a process runs: a module, and words behind the job's file.
    """

    model: Path
    backend: Backend
    workload: Workload
    again: bool = False
    environment: str = HERE
    program: tuple[str, ...] = PROGRAM


@dataclass
class TimedRow:
    """One contestant and everything measured of it; lists hold one entry a set.

    Attributes:
        caches: ``cold`` or ``warm`` where engines are built: see `Started`.
        turns: Joined bursts of every block of a set: both halves of A .. A.
        cpu_ns: CPU time of all threads within bursts.
        joules: Energy counter -> joules within bursts, of the whole package or board.
        runs: Runs within bursts, warm-up runs before an entry included.
        spin_ns: CPU time that threads went on spinning after a burst; one entry a burst.
        details: What bursts told for `Workload.results`.
        compute_ns: Computing alone on a device with memory of its own, a figure a round.
        gpus: What the GPUs said of themselves directly after that.
    """

    contestant: Contestant
    stream: Path
    load_ns: list[int] = field(default_factory=list)
    first_ns: list[int] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    placement: Mapping[str, int] = field(default_factory=dict)
    footprints: list[Mapping[str, Any]] = field(default_factory=list)
    turns: list[list[Burst]] = field(default_factory=list)
    cpu_ns: int = 0
    joules: dict[str, float] = field(default_factory=dict)
    runs: int = 0
    spin_ns: list[int] = field(default_factory=list)
    details: list[Mapping[str, Any]] = field(default_factory=list)
    compute_ns: list[int] = field(default_factory=list)
    gpus: list[Mapping[str, Any]] = field(default_factory=list)
    error: str = ""

    @property
    def latency_ns(self) -> list[int]:
        """All entries, raw."""
        return [ns for turn in self.turns for one in turn for ns in one.latency_ns]


def contest(
    groups: Sequence[Sequence[TimedRow]],
    root: Path,
    seconds: float,
    energy: Energy,
    sets: int,
    sink: Sink = silent,
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


def pairs(one: TimedRow, base: TimedRow) -> list[Pair]:
    """Return the blocks of two rows of a group as pairs, a pair a set."""
    return list(map(Pair.of, base.turns, one.turns))


class _Set:
    """Live processes, one a row. A row whose process fails keeps the reason and drops out."""

    def __init__(
        self,
        rows: Sequence[TimedRow],
        root: Path,
        energy: Energy,
        stack: ExitStack,
        tell: Callable[[float], None],
        sink: Sink,
    ) -> None:
        self._rows = rows
        self._root = root
        self._energy = energy
        self._stack = stack
        self._tell = tell
        self._sink = sink
        self._live: dict[int, Worker] = {}

    def run(self, seconds: float, *, backwards: bool = False) -> None:
        """Start a process for every row, one by one, and time all in turns until time is up.

        Args:
            backwards: Start the last row's first: see `timing.pairs.fresh_pairs`.
        """
        self._tell(0.0)
        self._each(self._start, backwards=backwards)
        warmed = dict(self._each(lambda index: (index, self._warm(index))))
        share = seconds / (2 * _BLOCKS[0] * len(warmed))
        self._blocks(pace(warmed, min(max(_BURST_S[0], share), _BURST_S[1])), seconds)
        self._each(self._leave)

    @property
    def _alive(self) -> list[int]:
        return [index for index, row in enumerate(self._rows) if not row.error]

    def _each(self, act: Callable[[int], T], *, backwards: bool = False) -> list[T]:
        """Act on every row that runs, in order, and return what those that still run gave."""
        order = self._alive[::-1] if backwards else self._alive
        found = [self._guarded(act, index) for index in order]
        return [one for one in found if one is not None]

    def _guarded(self, act: Callable[[int], T], index: int) -> T | None:
        """Act on a row; where its process fails, keep the reason and return None.

        Raises:
            BadModel: The first row failed, the measure of the others.
        """
        try:
            return act(index)
        except WorkerFailed as error:
            self._rows[index].error = error.failure.reason
            if index:
                return None
            one = self._rows[0].contestant
            single = "leave the batch out: the model may take one sample a run"
            fix = error.failure.fix or "check the model, the data and the backend"
            fix = single if one.workload.batch > 1 else fix
            raise error.as_bad_model(one.model, one.backend, fix) from None

    def _start(self, index: int) -> None:
        """Load and run once, while no other process starts.

        Its first process builds the engines of a provider that has any, the others find them.
        """
        row = self._rows[index]
        worker = self._live[index] = self._stack.enter_context(self._worker(index, row))
        started = ready(worker)
        row.load_ns.append(started.load_ns)
        row.first_ns.append(started.first_ns)
        row.caches += [started.cache] if started.cache else []
        row.placement = started.placement

    def _worker(self, index: int, row: TimedRow) -> Worker:
        who = row.contestant
        job = lone(
            who.model,
            who.backend,
            row.stream,
            self._root,
            "bench",
            who.workload,
            who.environment,
            self._root / "engines" / f"{index}-{who.workload.batch}",
        )
        return Worker(job, program=who.program, sink=self._sink)

    def _warm(self, index: int) -> Warmed:
        """Run until latencies settle; what the workload tells of it is dropped."""
        found = warm(self._live[index])
        self._live[index].ask("details")
        return found

    def _leave(self, index: int) -> None:
        row, worker = self._rows[index], self._live[index]
        row.footprints.append(worker.ask("footprint"))
        row.details += worker.ask("details")["details"]
        apart = worker.ask("device")
        row.compute_ns += apart["compute_ns"]
        row.gpus += apart["gpus"]

    def _blocks(self, sizes: Mapping[int, Span], seconds: float) -> None:
        fewest, most = _BLOCKS
        began = time.monotonic()
        for row in self._rows:
            row.turns.append([])

        def timed(index: int, size: Span) -> Burst | None:
            return self._guarded(lambda index: self._metered(index, size), index)

        for turn, found in enumerate(blocks(sizes, timed), 1):
            for index, joined in found.items():
                self._rows[index].turns[-1].append(joined)
            spent = time.monotonic() - began
            self._tell(min(1.0, spent / seconds))
            if turn >= most or (turn >= fewest and spent > seconds):
                break

    def _metered(self, index: int, size: Span) -> Burst:
        """Run a burst and add up what it used; return when its threads no longer spin."""
        row, worker = self._rows[index], self._live[index]
        power, before = self._energy.read(), worker.ask("usage")
        timed = burst(worker, size)
        after = worker.ask("usage")
        for name, joules in self._energy.spent(power, self._energy.read()).items():
            row.joules[name] = row.joules.get(name, 0.0) + joules
        row.cpu_ns += after["cpu_ns"] - before["cpu_ns"]
        row.runs += after["runs"] - before["runs"]
        row.spin_ns.append(worker.ask("rest")["cpu_ns"])
        return timed
