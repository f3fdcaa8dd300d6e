"""The worker's answer to what its environment offers."""

from __future__ import annotations

from typing import Any

from ortune.core.plugins import codec
from ortune.measurement.machine.offered import offered
from ortune.measurement.worker.workbench import Workbench


def capabilities(bench: Workbench) -> dict[str, Any]:
    """Return the `Capabilities` of this process for the job's backend."""
    answer: dict[str, Any] = codec.encode(offered(bench.job.backend))
    return answer
