"""Import the runtime before a load is timed: every session of a process shares it."""

from __future__ import annotations

import time
from typing import Any

from ortune.measurement.worker.workbench import Workbench


def prepare(bench: Workbench) -> dict[str, Any]:
    """Import what the backend runs on, by asking whether it is there; how long that took."""
    start = time.perf_counter_ns()
    bench.job.backend.missing()
    return {"import_ns": time.perf_counter_ns() - start}
