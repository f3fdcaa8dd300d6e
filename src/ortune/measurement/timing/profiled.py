"""Run a model plainly and with its runtime's profiler in turns, and read what it recorded."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ortune.core.errors import BackendMissing
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.plugins import codec
from ortune.core.session import Recorded
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, translate_failures

_EVENTS = 20_000
"""Calls of kernels that a trace should hold at most: each is about a kilobyte."""
_CALL_NS = 2_000
"""A call of a kernel takes at least about this long with the profiler on."""
_BURST_NS = 100_000_000
_WARM_NS = 300_000_000
_LEAST_BURST = 4
"""The first run after the other process is cold: a quarter, which the middle half leaves out."""
_LEAST = 12
_MOST = 400


@dataclass(frozen=True)
class Runs:
    """What the profiled and the plain runs of one model brought.

    Attributes:
        recorded: The runtime's record of the middle half of the profiled runs.
        plain_ns: Mean of the middle half of the plain runs.
    """

    recorded: Recorded
    plain_ns: float
    plain: int


def profile_model(
    job: WorkerJob, *, seconds: float, runs: int = 0, sink: Sink = ignore_event
) -> Runs:
    """Time a model in two processes, one with the profiler on, in bursts of the same samples.

    Args:
        job: What both load; the executed graph and the trace are left in ``job.out/recorded``.
        seconds: Soft limit of the time spent on counted runs.
        runs: Profiled runs; 0 takes what fits the seconds and a trace of bounded size.
        sink: Receives how far it is, between bursts.

    Raises:
        BackendMissing: The runtime records nothing, or the provider took no node.
        BadModel: The model does not run.
    """
    folder = job.out / "recorded"
    folder.mkdir(parents=True, exist_ok=True)
    problem = f"{Path(job.models[MAIN]).name} is not profiled on {job.backend}"
    fix = "check the model, the data and the backend"
    with translate_failures(problem, fix), ExitStack() as stack:
        plain = stack.enter_context(Worker(replace(job, out=job.out / "plain")))
        other = stack.enter_context(Worker(replace(job, out=job.out / "profiled")))
        opened = other.ask("record", folder=folder)
        if "missing" in opened:
            raise BackendMissing(opened["missing"], fix=opened["remedy"])
        plain.ask("load")
        nodes = opened["nodes"]
        slow = max(_warm_profiled(plain), _warm_profiled(other))
        run_total = runs or run_count(slow, nodes, seconds)
        each = max(_LEAST_BURST, min(run_total, _BURST_NS // max(1, slow)))
        walls: list[int] = []
        done, turn = 0, 0
        while done < run_total:
            sink(Progress("profiling", done, run_total))
            size = min(each, run_total - done)
            for worker in (plain, other) if turn % 2 == 0 else (other, plain):
                latencies = worker.ask("laps", at=done, runs=size)["latency_ns"]
                worker.ask("wait_idle")  # its threads would spin on into the other's turn
                walls += latencies if worker is plain else []
            done, turn = done + size, turn + 1
        answer = other.ask("end_recording", runs=run_total)
    recorded: Recorded = codec.decode(Recorded, answer["recorded"])
    return Runs(recorded, middle_mean(walls), len(walls))


def middle_mean(values: list[int]) -> float:
    """Return the mean of the middle half: robust, and additive over the parts of a run."""
    ordered = np.sort(np.asarray(values, np.float64))
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def _warm_profiled(worker: Worker) -> int:
    latency: list[int] = worker.ask("laps", at=0, runs=2)["latency_ns"]
    spent = sum(latency)
    while spent < _WARM_NS:
        latency = worker.ask("laps", at=0, runs=min(50, 1 + _WARM_NS // 4 // latency[-1]))[
            "latency_ns"
        ]
        spent += sum(latency)
    return int(np.median(latency))


def run_count(slow: int, nodes: int, seconds: float) -> int:
    """Return how many runs fit the time, and a trace that can still be read.

    Where a runtime does not count its `nodes` (0), as many are taken as fit the `slow` run.
    """
    most = max(1, slow // _CALL_NS)
    fits = int(seconds * 1e9 / 2 / max(1, slow))
    return max(_LEAST, min(fits, _MOST, _EVENTS // min(nodes or most, most)))
