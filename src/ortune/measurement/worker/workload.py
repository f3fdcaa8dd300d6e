"""Worker tasks that run a model under its workload, and what that costs beside time."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from ortune.core.workload import Span
from ortune.measurement.machine.memory import peak_rss
from ortune.measurement.worker.workbench import Workbench

_STEP_S = 0.005
_IDLE_NS = 500_000
"""CPU time in one step below which threads have stopped spinning."""


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

    Before them the round at `at` is run until it settles, at most `drop` times, not recorded.
    What an entry is, the workload says.

    Returns:
        ``alike``: whether it matters not which round an entry ran: all have one shape, and no
        schedule tells them apart.
    """
    bench.prepare()
    alike = not bench.job.workload.scheduled and len(set(bench.shapes)) == 1
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
        "alike": alike,
    }


def details(bench: Workbench) -> dict[str, Any]:
    """Return the details of the bursts since this was last asked, and forget them."""
    found = list(bench.details)
    bench.details.clear()
    return {"details": found}


def usage(bench: Workbench) -> dict[str, Any]:
    """Read the CPU clock of all threads, user and system, and the runs so far.

    Taken before and after bursts, the differences are what a run costs.
    """
    return {"cpu_ns": time.process_time_ns(), "runs": bench.runs}


def footprint(bench: Workbench) -> dict[str, Any]:
    """Read this process's memory in bytes, its interpreter and the runtime's libraries included.

    Returns:
        ``rss``: resident now; ``uss``: of that, what no other process shares, None where it cannot
        be read; ``peak``: most that was ever resident; ``samples``: kept samples.
    """
    import psutil

    process, uss = psutil.Process(), None
    with suppress(psutil.Error, AttributeError):
        uss = process.memory_full_info().uss
    rss = process.memory_info().rss
    return {"rss": rss, "uss": uss, "peak": peak_rss(), "samples": bench.held}


def rest(bench: Workbench, limit_s: float = 0.5) -> dict[str, Any]:
    """Wait until threads have stopped spinning; return the CPU time that they spent on it.

    Runtimes let their threads spin after a run, so as to find the next one at once: the CPU that
    a pause costs, and a load on whatever is timed next.
    """
    start = last = time.process_time_ns()
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        time.sleep(_STEP_S)
        now = time.process_time_ns()
        if now - last < _IDLE_NS:
            break
        last = now
    return {"cpu_ns": time.process_time_ns() - start}
