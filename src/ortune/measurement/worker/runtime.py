"""What a worker's runtime answers: before anything runs, and by its profiler of single runs."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from ortune.core.capabilities import Capabilities
from ortune.core.errors import BackendMissing
from ortune.core.hardware import gpu
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.core.plugins import codec
from ortune.core.session import DeviceTimed, Recording, Tensors
from ortune.measurement.job import MAIN
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.worker.workbench import Workbench
from ortune.runtimes.onnxruntime.session import devices, providers

_LEAST_RUNS, _MOST_RUNS, _COMPUTE_NS = 3, 50, 20_000_000


def capabilities(bench: Workbench) -> dict[str, Any]:
    """Return the `Capabilities` of this process for the job's backend.

    Raises:
        BadSettings: The installed runtime does not know a setting.
    """
    missing = bench.job.backend.missing()
    found = Capabilities(
        missing=missing,
        state=bench.job.backend.state(missing),
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


def device(bench: Workbench, seconds: float = 0.5) -> dict[str, Any]:
    """Time computing alone, without the copies to and from a device with memory of its own.

    Rounds of the cycle are staged one after the other and each is run until its share of the time
    is up, at least three times.

    Returns:
        ``compute_ns``: a round's median, by every round that was run; empty where a session lies
        in the CPU's memory, or cannot be timed apart. ``gpus``: readings taken directly after it.
    """
    found: list[int] = []
    sessions = bench.sessions.values()
    if all(isinstance(session, DeviceTimed) for session in sessions):
        until = time.monotonic() + seconds
        for position in range(len(bench.cycle)):
            found.append(sum(_computed(bench, *call) for call in bench.round(position)))
            if time.monotonic() > until:
                break
    read = gpu.gpus() if bench.job.backend.runs_on == "gpu" else ()
    return {"compute_ns": found, "gpus": codec.encode(read)}


def _computed(bench: Workbench, name: str, feeds: Tensors) -> int:
    """Return the median of runs on inputs that are there already, in ns."""
    session = bench.sessions[name]
    assert isinstance(session, DeviceTimed), "device times what says that it can be timed"
    session.stage(feeds)
    session.compute()
    taken: list[int] = []
    while len(taken) < _LEAST_RUNS or (sum(taken) < _COMPUTE_NS and len(taken) < _MOST_RUNS):
        start = time.perf_counter_ns()
        session.compute()
        taken.append(time.perf_counter_ns() - start)
    return int(median(taken))


def recorded(bench: Workbench, runs: int) -> dict[str, Any]:
    """End the recording and return the last `runs` runs."""
    session = bench.sessions[MAIN]
    assert isinstance(session, Recording), "recorded is asked after record"
    return {"recorded": codec.encode(session.recorded(runs))}
