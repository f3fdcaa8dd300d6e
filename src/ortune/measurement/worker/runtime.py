"""What a worker's runtime answers before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ortune.core.plugins import codec
from ortune.measurement.job import MAIN
from ortune.measurement.machine.offered import offered
from ortune.measurement.worker.workbench import Workbench


def capabilities(bench: Workbench) -> dict[str, Any]:
    """Return the `Capabilities` of this process for the job's backend."""
    answer: dict[str, Any] = codec.encode(offered(bench.job.backend))
    return answer


def prepare(bench: Workbench) -> dict[str, Any]:
    """Import the runtime before a load is timed: all sessions of a process share it."""
    start = time.perf_counter_ns()
    bench.job.backend.missing()
    return {"import_ns": time.perf_counter_ns() - start}


def takes(bench: Workbench) -> dict[str, Any]:
    """Return execution provider -> names of the model's nodes that it would take."""
    found = bench.job.backend.takes(bench.job.models[MAIN])
    return {"takes": {provider: list(names) for provider, names in found.items()}}


TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "capabilities": capabilities,
    "prepare": prepare,
    "takes": takes,
}
