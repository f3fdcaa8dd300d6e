"""Paired timing: two live workers, asked for bursts in the order A B B A; nothing else runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.core.workload import Span
from ortune.measurement.process import Worker
from ortune.measurement.timing import stats

_BURST_NS = 60_000_000
_WARM_NS = 150_000_000
_ENTRY_NS = 1_000_000
"""Runs shorter than this are averaged in groups: the clock and the loop cost about 1 us."""
_DROP_NS = 20_000_000
"""After the other process ran, the first run is cold; it is dropped when runs are short."""


@dataclass(frozen=True)
class Effort:
    """How long a pair may take.

    Attributes:
        min_blocks: Blocks before any early stop, unless they take twice the seconds.
        max_blocks: Blocks at most.
        seconds: Soft limit of timing.
        decide: Stop early when the interval lies wholly on one side of 1 and is narrow enough.
    """

    min_blocks: int = 6
    max_blocks: int = 24
    seconds: float = 4.0
    decide: bool = True


def warm(worker: Worker) -> int:
    """Run until latencies settle; return the quickest run in ns."""
    answer = worker.ask("burst", at=0, runs=2)
    quick, spent = min(answer["latency_ns"]), answer["spent_ns"]
    while spent < _WARM_NS:
        runs = max(2, min(500, _WARM_NS // 4 // max(quick, 1)))
        answer = worker.ask("burst", at=0, runs=runs)
        quick, spent = min(quick, *answer["latency_ns"]), spent + answer["spent_ns"]
    return int(quick)


def pace(base: int, candidate: int) -> Span:
    """Size bursts so that the slower side takes about 60 ms, or two runs of a slow model."""
    slow, fast = max(base, candidate, 1), max(1, min(base, candidate))
    each = max(1, _ENTRY_NS // fast)
    runs = max(2, _BURST_NS // (slow * each))
    return Span(0, runs, each, 1 if slow < _DROP_NS else 0)


def time_pair(
    baseline: Worker,
    candidate: Worker,
    effort: Effort,
    progress: Callable[[Interval, int], None] = lambda ratio, blocks: None,
) -> Pair:
    """Time blocks A B B A until the effort is spent or the answer is clear.

    A side begins when the other's threads have stopped spinning: they would take its CPUs.

    Raises:
        WorkerFailed: One of them died.
    """
    size = pace(warm(baseline), warm(candidate))
    candidate.ask("rest")
    blocks: list[Block] = []
    until = time.monotonic() + effort.seconds
    while len(blocks) < effort.max_blocks:
        at = 2 * size.total * len(blocks)
        a1 = burst(baseline, size, at)
        baseline.ask("rest")
        b1, b2 = burst(candidate, size, at), burst(candidate, size, at + size.total)
        candidate.ask("rest")
        a2 = burst(baseline, size, at + size.total)
        blocks.append(Block(join(a1, a2), join(b1, b2)))
        if len(blocks) < 3:
            continue
        found = stats.ratio([Pair(tuple(blocks))], stats.SEARCHING)
        progress(found, len(blocks))
        if effort.decide and found.low > 1.3:
            break
        late = time.monotonic() - until
        if len(blocks) < effort.min_blocks and late < effort.seconds:
            continue
        if late > 0 or (effort.decide and _clear(found)):
            break
    return Pair(tuple(blocks))


def _clear(found: Interval) -> bool:
    """The side is known and the estimate is worth 4 %."""
    return (found.high < 1 or found.low > 1.02) and found.high / found.low < 1.08


def burst(worker: Worker, size: Span, at: int) -> Burst:
    """Ask for a burst of a size, from a position of the timing cycle."""
    answer = worker.ask("burst", at=at, runs=size.runs, each=size.each, drop=size.drop)
    return Burst(tuple(answer["latency_ns"]), tuple(answer["waited"]), size.each)


def join(one: Burst, two: Burst) -> Burst:
    """Put two bursts of one side together."""
    return Burst(one.latency_ns + two.latency_ns, one.waited + two.waited, one.runs_each)
