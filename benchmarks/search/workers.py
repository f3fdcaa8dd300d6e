"""Workers of a recording: timed no longer than it can count, and scored once."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from ortune.core.plugins import codec
from ortune.core.trial import Block, Burst, Pair
from ortune.core.workload import Span
from ortune.measurement.process import Worker
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort
from ortune.measurement.timing.turns import iterate_blocks, request_burst, size_bursts, warm_up

BEHIND = {1: 2.0, 2: 1.5, 4: 1.1}
"""Blocks -> times the best so far beyond which a plan gets no more of them: further than where
`ortune.search.abandon` stops a trial, so that a replayed search seldom asks for more."""
DISTURBED = 0.5
"""Share of entries disturbed by neighbours above which few blocks say nothing."""


class Once(Worker):
    """A live worker that answers from memory what it has scored before."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._known: dict[str, dict[str, Any]] = {}

    def ask(self, do: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        key = json.dumps([do, codec.encode(arguments)])
        if key not in self._known:
            self._known[key] = self._worker.ask(do, timeout_s=timeout_s, **arguments)
        return self._known[key]


def timed(
    baseline: Worker, candidate: Worker, effort: Effort, best: float
) -> tuple[Pair, dict[str, Any]]:
    """Time a pair as `time_pair` does, until it cannot matter any more by how much it is behind.

    Args:
        best: Ratio of the best plan so far.

    Returns:
        The blocks, and the seconds until the first and of each.
    """
    began = time.perf_counter()
    sizes = size_bursts({one: warm_up(one) for one in (baseline, candidate)}, effort.burst)
    warm_s, last = time.perf_counter() - began, candidate

    def taken(worker: Worker, size: Span) -> Burst:
        nonlocal last
        if worker is not last:
            last.ask("wait_idle")
        last = worker
        return request_burst(worker, size)

    began, done = time.perf_counter(), list[Block]()
    for found in iterate_blocks(sizes, taken):
        done.append(Block(found[baseline], found[candidate]))
        seconds = time.perf_counter() - began
        if len(done) >= effort.max_blocks or settled(done, seconds, effort, best):
            break
    return Pair(tuple(done)), {"warm_s": warm_s, "block_s": seconds / len(done)}


def settled(done: Sequence[Block], seconds: float, effort: Effort, best: float) -> bool:
    """Whether more blocks would tell nothing: time is up, or the plan is far behind the best.

    Args:
        seconds: Since the first block began.
    """
    taken = [Pair(tuple(done))]
    if behind(taken, best, len(done)) and not stats.compute_disturbed_share(taken) > DISTURBED:
        return True
    late = seconds - effort.seconds
    if len(done) < effort.min_blocks and late < effort.seconds:
        return False
    return late > 0 or behind(taken, best, len(done))


def behind(pairs: Sequence[Pair], best: float, blocks: int) -> bool:
    """Whether a plan of which so many blocks were timed is far behind the best."""
    limit = BEHIND[max(known for known in BEHIND if known <= blocks)]
    return stats.latency_ratio(pairs, stats.SEARCHING).value > limit * best
