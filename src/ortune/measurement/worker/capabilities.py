"""The worker's answer to what its environment offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ortune.core.capabilities import Capabilities
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.core.plugins import codec
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.worker.workbench import Workbench
from ortune.runtimes.onnxruntime.devices import devices, providers


def capabilities(bench: Workbench) -> dict[str, Any]:
    """Return the `Capabilities` of this process for the job's backend."""
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


TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {"capabilities": capabilities}
