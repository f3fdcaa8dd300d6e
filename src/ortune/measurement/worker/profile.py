"""A worker's profiling tasks: single runs, and what the runtime's profiler recorded of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ortune.core.errors import BackendMissing
from ortune.core.plugins import codec
from ortune.core.session import Recording
from ortune.measurement.job import MAIN
from ortune.measurement.worker.workbench import Workbench


def record(bench: Workbench, folder: str) -> dict[str, Any]:
    """Open the model with the profiler on; return about how many kernels it has.

    That the provider is missing, or took nothing, is an answer: the caller may do without it.
    """
    try:
        return {"nodes": sum(bench.record(Path(folder)).placement().values())}
    except BackendMissing as error:
        return {"missing": error.what, "remedy": error.fix}


def laps(bench: Workbench, at: int, runs: int) -> dict[str, Any]:
    """Time single runs from position `at` of the cycle of samples."""
    latency = []
    for position in range(at, at + runs):
        for name, feeds in bench.round(position):
            start = time.perf_counter_ns()
            bench.sessions[name].run(feeds)
            latency.append(time.perf_counter_ns() - start)
    return {"latency_ns": latency}


def recorded(bench: Workbench, runs: int) -> dict[str, Any]:
    """End the recording and return the last `runs` runs."""
    session = bench.sessions[MAIN]
    if not isinstance(session, Recording):
        raise AssertionError("recorded is asked after record")
    return {"recorded": codec.encode(session.recorded(runs))}
