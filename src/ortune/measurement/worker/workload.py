"""Worker tasks that run a model under its workload."""

from __future__ import annotations

from typing import Any

from ortune.core.workload import Span
from ortune.measurement.machine.memory import peak_rss
from ortune.measurement.worker.workbench import Workbench


def first(bench: Workbench) -> dict[str, Any]:
    """Run the first inference, which allocates and packs; then once on every other lane."""
    lane, *others = bench.lanes
    taken = 0
    for session, feeds in lane.calls(0):
        start = lane.clock()
        session.run(feeds)
        taken += lane.clock() - start
    for other in others:
        for session, feeds in other.calls(0):
            session.run(feeds)
    return {"first_ns": taken, "peak_rss": peak_rss()}


def burst(bench: Workbench, at: int, runs: int, each: int = 1, drop: int = 0) -> dict[str, Any]:
    """Drive `runs` entries of `each` consecutive rounds of the cycle, from position `at`.

    Both sides of a pair get the same numbers, so entry i ran the same samples on both. The first
    `drop` rounds are not recorded. What an entry is, the workload says.
    """
    bench.prepare()
    clock = next(iter(bench.sessions.values())).clock
    start = clock()
    driven = bench.job.workload.drive(bench, Span(at, runs, each, drop))
    bench.runs += driven.runs
    if driven.details:
        bench.details.append(driven.details)
    return {
        "latency_ns": list(driven.latency_ns),
        "waited": list(driven.waited),
        "spent_ns": max(clock() - start, sum(driven.latency_ns)),
    }


def details(bench: Workbench) -> dict[str, Any]:
    """Return the details of the bursts since this was last asked, and forget them."""
    found = list(bench.details)
    bench.details.clear()
    return {"details": found}
