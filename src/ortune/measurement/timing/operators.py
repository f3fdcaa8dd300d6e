"""How a run's time divides among operators: a few runs with the runtime's own profiler."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ortune.core.errors import BackendMissing
from ortune.core.plugins import codec
from ortune.core.session import Executed, Recorded
from ortune.measurement.process import Worker

_FEWEST, _MOST = 4, 20
"""Profiled runs; of the middle half of them the times are the means."""
_EVENTS = 6_000
"""Calls of kernels in a trace at most: reading it takes about a tenth of a second."""
_SLOWED = 1.5
"""Time of a profiled run over a plain one, about."""
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
