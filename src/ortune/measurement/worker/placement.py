"""A worker's question to the runtime: which nodes of a model would it take?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ortune.measurement.job import MAIN
from ortune.measurement.worker.workbench import Workbench


def takes(bench: Workbench) -> dict[str, Any]:
    """Ask the job's backend; nothing is run."""
    found = bench.job.backend.takes(bench.job.models[MAIN])
    return {"takes": {provider: list(names) for provider, names in found.items()}}


TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {"takes": takes}
