"""What a runtime says that a contestant allocates: recorded apart, as recording costs time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.analysis.benchmark.interleave import Contestant
from ortune.measurement.process import Worker, WorkerFailed, lone


def allocated(one: Contestant, stream: Path, root: Path, *, by_node: bool) -> Mapping[str, Any]:
    """Run a contestant in a process of its own with the runtime's records on.

    Returns:
        ``arena``: ``held`` and ``peak`` bytes, or None; with `by_node` also ``nodes``: a list of
        `ortune.measurement.machine.memory.NodeMemory`, or None. ``why`` says why there is none.
    """
    place, engines = one.environment, root / "engines" / "memory"
    job = lone(one.model, one.backend, stream, root, "memory", one.workload, place, engines)
    found: dict[str, Any] = {"arena": None, "why": {}}
    for task in ("arena", "nodes") if by_node else ("arena",):
        try:
            with Worker(job, timeout_s=120) as worker:
                answer = worker.ask(task)
        except WorkerFailed as error:
            answer = {task: None, "why": error.failure.reason}
        found[task] = answer[task]
        if answer["why"]:
            found["why"][task] = answer["why"]
    return found
