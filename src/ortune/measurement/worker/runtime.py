"""What a worker's runtime answers before anything runs."""

from __future__ import annotations

import time
from typing import Any

from ortune.core.capabilities import Capabilities
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.core.plugins import codec
from ortune.measurement.job import MAIN
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.worker.workbench import Workbench
from ortune.runtimes.onnxruntime.devices import devices, providers


def capabilities(bench: Workbench) -> dict[str, Any]:
    """Return the `Capabilities` of this process for the job's backend.

    Raises:
        BadSettings: The installed runtime does not know a setting.
    """
    found = Capabilities(
        missing=bench.job.backend.missing(),
        effective_cpus=effective_cpus(),
        usable_cpus=usable_cpus(),
        instruction_sets=tuple(sorted(instruction_sets())),
        providers=providers(),
        devices=devices(),
        versions=versions(),
        machine=machine(),
    )
    answer: dict[str, Any] = codec.encode(found)
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
