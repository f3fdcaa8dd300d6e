"""Processes timed in turns, A B C C B A, while nothing else runs: the rules of the clock.

A *stretch* is one process running without another between; after each switch its runs are dropped
until they settle, as the other's weights lie in the cache. Bursts are sized by time. A plan's
requests may take a few times what the original's took, then it hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import fmean
from typing import Any, TypeVar

from ortune.core.backend import Kind
from ortune.core.trial import Burst
from ortune.core.workload import Span, Workload
from ortune.measurement.job import Answering
from ortune.measurement.process import Worker
from ortune.measurement.workloads.latency import Latency
from ortune.measurement.workloads.throughput import Throughput

_WARM_NS = 150_000_000
_ENTRY_NS = 1_000_000
"""Runs shorter than this are averaged in groups: the clock and the loop cost about 1 us."""
_SETTLE_NS = 10_000_000
_SETTLE_RUNS = 8
"""After a switch at most so many runs are dropped, beyond those of the first 10 ms."""
_LONG_NS = 100_000_000  # one run that takes this long brings back what the other has displaced
_COLD = 8
"""Between bursts of a stretch a question and its answer cost the next run 0.2 ms: it is dropped
where a burst has as many."""
_FEWEST = 2  # entries of a burst at least

T = TypeVar("T")


@dataclass(frozen=True)
class StartupTimes:
    """What a fresh process took until it had answered once.

    Attributes:
        peak_rss: Bytes at most so far.
        placement: Execution provider -> nodes it took.
        cache: ``cold`` where an engine was built, ``warm`` where all came from the cache; empty
            without engines.
    """

    load_ns: int
    first_ns: int
    peak_rss: int
    placement: Mapping[str, int]
    cache: str = ""


def wait_until_ready(worker: Answering) -> StartupTimes:
    """Load and run once. Raises WorkerFailed: it does not run."""
    loaded, first = worker.ask("load"), worker.ask("first")
    return StartupTimes(
        loaded["load_ns"],
        first["first_ns"],
        first["peak_rss"],
        loaded["placement"],
        loaded.get("cache", ""),
    )


@dataclass(frozen=True)
class WarmTimes:
    """What a warm process takes.

    Attributes:
        run_ns: Its mean run once latencies have settled.
        alike: All entries of its bursts ask for the same: which sample was run does not matter.
    """

    run_ns: int
    alike: bool = False


@contextmanager
def start_in_turn(*starts: Callable[[], Worker]) -> Iterator[list[tuple[Worker, StartupTimes]]]:
    """Start processes one by one, each ready before the next starts; end them afterwards.

    Raises:
        WorkerFailed: One does not run.
    """
    with ExitStack() as stack:
        workers = []
        for start in starts:
            worker = stack.enter_context(start())
            workers.append((worker, wait_until_ready(worker)))
        yield workers


def warmup_probe(worker: Answering) -> Mapping[str, Any]:
    """Run twice: the beginning of warming up."""
    return worker.ask("burst", at=0, runs=2)


def warm_up(worker: Answering, seen: Mapping[str, Any] | None = None) -> WarmTimes:
    """Run until latencies settle; `warmup_probe` has shown what was `seen`, if it was asked."""
    answer = warmup_probe(worker) if seen is None else seen
    quick, spent = min(answer["latency_ns"]), answer["spent_ns"]
    while spent < _WARM_NS:
        runs = max(2, min(500, _WARM_NS // 4 // max(quick, 1)))
        answer = worker.ask("burst", at=0, runs=runs)
        quick, spent = min(quick, *answer["latency_ns"]), spent + answer["spent_ns"]
    return WarmTimes(max(1, round(fmean(answer["latency_ns"]))), bool(answer["alike"]))


def size_bursts(sides: Mapping[T, WarmTimes], seconds: float) -> dict[T, Span]:
    """Size every side's bursts: as many entries as fit the time, two at least.

    Where the entries of a side are not alike, only the same entries of all sides can be compared:
    then all run as many as fit the time of the slowest.
    """
    if all(warmed.alike for warmed in sides.values()):
        return {
            side: _make_span(warmed.run_ns, warmed.run_ns, seconds)
            for side, warmed in sides.items()
        }
    runs = [warmed.run_ns for warmed in sides.values()]
    return dict.fromkeys(sides, _make_span(max(runs), min(runs), seconds))


def _make_span(slow_ns: int, fast_ns: int, seconds: float) -> Span:
    """Return a burst of runs that take from `fast_ns` to `slow_ns`."""
    each = max(1, _ENTRY_NS // fast_ns)
    runs = max(_FEWEST, int(1e9 * seconds) // (slow_ns * each))
    drop = 1 if fast_ns >= _LONG_NS else _SETTLE_RUNS + _SETTLE_NS // fast_ns
    return Span(0, runs, each, drop)


def request_burst(worker: Answering, size: Span) -> Burst:
    """Ask for a burst of a size."""
    answer = worker.ask("burst", at=size.at, runs=size.runs, each=size.each, drop=size.drop)
    latencies = tuple(answer["latency_ns"])
    return Burst(
        latencies,
        tuple(answer["waited"]),
        size.each,
        alike=bool(answer["alike"]),
        neighbours=answer.get("neighbours"),
    )


def iterate_blocks(
    sizes: Mapping[T, Span], timed: Callable[[T, Span], Burst | None]
) -> Iterator[dict[T, Burst]]:
    """Yield the bursts of one block after another, both halves of a contestant joined.

    Who ran last runs again where the order turns: one stretch, in which it need not settle
    again. Every contestant walks through the cycle of samples at its own pace. What times a
    burst of a contestant's size takes it out by None.
    """
    remaining, last = list(sizes), None
    for turn in count():
        order = list(remaining)
        halves: list[dict[T, Burst]] = []
        for half in (order, order[::-1]):
            place = 2 * turn + len(halves)
            halves.append({})
            for contestant in half:
                if contestant not in remaining:
                    continue
                size = sizes[contestant]
                drop = size.drop if contestant != last else min(1, size.runs // _COLD)
                last = contestant
                if (
                    result := timed(contestant, replace(size, at=place * size.total, drop=drop))
                ) is None:
                    remaining.remove(contestant)
                else:
                    halves[-1][contestant] = result
        block = {}
        for contestant in remaining:
            first, second = (half[contestant] for half in halves)
            readings = [b.neighbours for b in (first, second) if b.neighbours is not None]
            block[contestant] = replace(
                first,
                latency_ns=first.latency_ns + second.latency_ns,
                waited=first.waited + second.waited,
                neighbours=fmean(readings) if readings else None,
            )
        yield block


_LOAD_S, _RUN_S, _BURST_S, _SCORE_S = 8.0, 2.0, 4.0, 6.0
"""What is always granted: a slow start of a process is no hang."""
_DEVICE_RUN_S = 30.0
"""What a first run on a GPU or NPU is granted: it loads kernels and plans convolutions."""
_TIMES = 10  # times the original's own that a load and a run may take


@dataclass(frozen=True)
class Deadlines:
    """Seconds by the request, from the original's; a request that is not named has the worker's.

    Attributes:
        run_ns: A run of the original.
        judged_s: Running and scoring the original on all samples.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    run_ns: int = 0
    judged_s: float = 0.0

    @classmethod
    def from_baseline(
        cls,
        started: StartupTimes,
        ready_s: float,
        run_ns: int,
        judged_s: float,
        workload: Workload,
    ) -> Deadlines:
        """Return what plans get.

        Args:
            started: The original's start; `ready_s` is the whole of it, its process included.
            judged_s: What it took to run and to score it.
        """
        load_s = max(_LOAD_S, 2 * ready_s, _TIMES * started.load_ns / 1e9)
        lanes = workload.lanes(1)
        run_s = max(_RUN_S, _TIMES * started.first_ns / 1e9)
        seconds = {"load": load_s, "first": run_s + (lanes - 1) * load_s}
        if isinstance(workload, Latency | Throughput):  # others decide how long a burst takes
            seconds["burst"] = max(_BURST_S, lanes * 4 * _TIMES * run_ns / 1e9)
        return cls(seconds, run_ns, judged_s)

    def list_seconds(self, kind: Kind) -> Mapping[str, float]:
        """Return the seconds by request of a plan that runs on a kind of device."""
        if kind == "cpu" or "first" not in self.seconds:
            return self.seconds
        return {**self.seconds, "first": max(_DEVICE_RUN_S, self.seconds["first"])}

    def score_s(self, run_ns: int, otherwise: float) -> float:
        """Return what scoring may take of a plan whose runs take `run_ns`.

        Args:
            otherwise: Where it is not known what the original took.
        """
        if not self.judged_s:
            return otherwise
        slower = max(1.0, run_ns / max(1, self.run_ns))
        return max(_SCORE_S, 3 * slower * self.judged_s)
