"""What running costs beside time: CPU of all threads and memory, asked of a live worker."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from ortune.measurement.machine.memory import peak_rss
from ortune.measurement.worker.workbench import Workbench

_STEP_S = 0.005
_IDLE_NS = 500_000
"""CPU time in one step below which threads have stopped spinning."""


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
