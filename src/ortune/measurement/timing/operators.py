"""Runs with the runtime's own profiler on: how a run's time divides among operators."""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ortune.core.errors import BackendMissing
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.plugins import codec
from ortune.core.session import Executed, Recorded
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, translate_failures

_FEWEST, _MOST = 4, 20  # profiled runs; of the middle half of them the times are the means
_EVENTS = 6_000  # calls of kernels in a trace at most: reading it takes about a tenth of a second
_SLOWED = 1.5  # time of a profiled run over a plain one, about
_GRACE_S = 5.0
SAME_WORK = {
    "Convolution": "Conv",
    "GroupConvolution": "Conv",
    "FullyConnected": "MatMul",
    "LSTMSequence": "LSTM",
    "LSTMCell": "LSTM",
}
"""Operators of other runtimes -> those of ONNX that do the same work."""


def record_kernels(
    worker: Worker, folder: Path, *, seconds: float, load_ns: int, run_ns: int
) -> Recorded:
    """Record a few runs, kernel by kernel; their time line is left out.

    Args:
        worker: Of one model, with samples; from now on its session is one that records.
        folder: Receives the runtime's files; they are removed.
        seconds: That all of it may take.
        load_ns: What opening a session took.
        run_ns: What a run takes.

    Raises:
        BackendMissing: It would take longer, or the runtime records nothing.
        WorkerFailed: It does not run with the profiler on.
    """
    remaining_s = seconds - 2 * load_ns / 1e9  # the graph is written too
    fits = int(remaining_s * 1e9 / (_SLOWED * max(1, run_ns)))
    if fits < _FEWEST:
        raise BackendMissing(f"it would take more than {seconds:.2g} s", fix="give more time")
    limit = 2 * seconds + _GRACE_S
    try:
        opened = worker.ask("record", folder=folder, timeout_s=limit)
        if "missing" in opened:
            raise BackendMissing(opened["missing"], fix=opened["remedy"])
        runs = max(_FEWEST, min(fits, _MOST, _EVENTS // max(1, opened["nodes"])))
        worker.ask("laps", at=0, runs=runs, timeout_s=limit)
        answer = worker.ask("end_recording", runs=runs, timeout_s=limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(codec.decode(Recorded, answer["recorded"]), timeline=())


def operator_shares(recorded: Recorded) -> dict[str, float]:
    """Return operator -> its share of the time of all kernels, the largest first.

    What a runtime fused counts as the operator that it was fused into.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    for node in recorded.nodes:
        spent[operator_of_kernel(node.op_type)] += node.spent_ns
    total = sum(spent.values())
    ranked = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return {name: time / total for name, time in ranked if time > 0}


def operator_of_kernel(kernel: str) -> str:
    """Return the operator that a runtime's kernel computes, fused or in another layout."""
    plain = kernel.removeprefix("Nhwc").removeprefix("Fused") or kernel
    return SAME_WORK.get(plain, plain)


def find_main_source(kernel: Executed, sources: Sequence[str], op_types: Mapping[str, str]) -> str:
    """Return the node that a fused kernel's time stands at.

    That is the first of its operator, or else the one with the longest name in its own, or else
    the first of all.
    """
    operator = operator_of_kernel(kernel.op_type)
    named = sorted((name for name in sources if name in kernel.name), key=len, reverse=True)
    same = (name for name in sources if op_types[name] in operator)
    return next(same, [*named, sources[0]][0])


_TRACED = 20_000  # calls of kernels that a trace should hold at most: each is about a kilobyte
_CALL_NS = 2_000  # a call of a kernel takes at least about this long with the profiler on
_BURST_NS = 100_000_000
_WARM_NS = 300_000_000
_LEAST_BURST = 4
"""The first run after the other process is cold: a quarter, which the middle half leaves out."""
_LEAST_RUNS = 12
_MOST_RUNS = 400


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
    return max(_LEAST_RUNS, min(fits, _MOST_RUNS, _TRACED // min(nodes or most, most)))
