"""What this process offers a backend."""

from __future__ import annotations

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.measurement.machine.machine import machine, versions
from ortune.runtimes.onnxruntime.devices import devices, providers


def offered(backend: Backend) -> Capabilities:
    """Return what this process's interpreter and CPUs offer a backend.

    Raises:
        BadSettings: The installed runtime does not know a setting.
    """
    return Capabilities(
        missing=backend.missing(),
        effective_cpus=effective_cpus(),
        usable_cpus=usable_cpus(),
        instruction_sets=tuple(sorted(instruction_sets())),
        providers=providers(),
        devices=devices(),
        versions=versions(),
        machine=machine(),
    )
