"""The tasks of a worker: functions of its workbench and plain JSON values."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from inspect import isgenerator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.backends.openvino import Openvino
from ortune.backends.tensorrt_engine import TensorrtEngine
from ortune.core import wording
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData
from ortune.core.metric import Metric
from ortune.core.plugins import codec, user_function
from ortune.core.session import Tensors
from ortune.data import stream
from ortune.measurement.job import MAIN
from ortune.measurement.machine.memory import peak_rss
from ortune.measurement.worker.exports import answer_module, describe_module, export_module
from ortune.measurement.worker.observers import extents, observe
from ortune.measurement.worker.peaks import peaks
from ortune.measurement.worker.rolling import roll
from ortune.measurement.worker.runtime import (
    capabilities,
    device,
    laps,
    prepare,
    record,
    recorded,
    takes,
)
from ortune.measurement.worker.workbench import Workbench
from ortune.measurement.worker.workload import burst, details, first, footprint, rest, usage
from ortune.runtimes.onnxruntime.compiled import Compiling

_ALONE = object()
"""Stands for the group of a record that was given without one."""


def load(bench: Workbench) -> dict[str, Any]:
    """Open the sessions: load time, placement, and whether engines came from the cache."""
    start = time.perf_counter_ns()
    bench.open()
    taken = time.perf_counter_ns() - start
    placement: Counter[str] = Counter()
    for opened in bench.sessions.values():
        placement.update(opened.placement())
    cache = ("cold", "warm")[all(bench.warm)] if bench.warm else ""
    return {"load_ns": taken, "placement": placement, "cache": cache}


def score(
    bench: Workbench,
    indices: Sequence[int],
    metrics: Sequence[Mapping[str, Any]],
    expected: str | None = None,
    save: str | None = None,
    labels: Sequence[Any] | None = None,
    beside: Sequence[Mapping[str, Any]] = (),
    given: Mapping[str, Sequence[bool]] | None = None,
) -> dict[str, Any]:
    """Run samples one by one; return a list of record rows for every metric.

    Args:
        expected: Stream of the baseline's outputs for exactly these samples; None scores the
            outputs against themselves.
        save: Stream file to write the outputs to.
        labels: One label a sample.
        beside: Metrics that are only shown: one that cannot score these outputs gets None.
        given: Inputs that the samples do not have: name -> switches.
    """
    more = {name: np.array(value, np.bool_) for name, value in (given or {}).items()}
    scorers = [codec.decode(Metric, dict(data)) for data in metrics]
    shown = [codec.decode(Metric, dict(data)) for data in beside]
    truth = stream.Stream(Path(expected)) if expected else None
    rows: list[list[list[float]]] = [[] for _ in scorers]
    others: list[list[list[float]] | None] = [[] for _ in shown]
    session, backend = bench.sessions[MAIN], bench.job.backend

    def outputs() -> Iterator[dict[str, NDArray[Any]]]:
        for place, index in enumerate(indices):
            bench.progress("running samples", place, len(indices))
            feeds = {**bench.sample(index), **more}
            actual = session.run(feeds)
            seen = backend.compared(feeds, actual)
            wanted = backend.compared(feeds, truth[place]) if truth else seen
            label = None if labels is None else [_label(labels[place])]
            for scorer, found in zip(scorers, rows, strict=True):
                found.append(scorer.records([wanted], [seen], label, [feeds])[0].tolist())
            for at, scorer in enumerate(shown):
                others[at] = _one_more(others[at], scorer, wanted, seen)
            yield actual

    if save:
        stream.write(Path(save), outputs())
    else:
        deque(outputs(), maxlen=0)
    return {"records": rows, "beside": others, "peak_rss": peak_rss()}


def _one_more(
    rows: list[list[float]] | None, metric: Metric, wanted: Tensors, seen: Tensors
) -> list[list[float]] | None:
    """Add the row of one more sample; None once a sample cannot be scored."""
    if rows is None:
        return None
    try:
        rows.append(metric.records([wanted], [seen], None)[0].tolist())
    except Exception:  # nobody asked for this figure: whatever it says must not stop the others
        return None
    return rows


def evaluate(
    bench: Workbench, function: str, record: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Call the user's ``fn(run)`` and return its records.

    For several models ``run`` is a dictionary: ``run["decoder"](**inputs)``. Of a generator that
    yields ``(record, group)`` the groups are returned too, and for every model the number of calls
    up to each yield.

    Args:
        function: ``pkg.module:name``.
        record: Model name -> stream file that receives the inputs of its calls.

    Raises:
        BadData: It yields groups with some records only.
    """
    calls = dict.fromkeys(bench.sessions, 0)
    ends: dict[str, list[int]] = {name: [] for name in calls}
    with ExitStack() as files:
        writers = {
            name: files.enter_context(stream.writing(Path(path)))
            for name, path in (record or {}).items()
        }

        def runner(name: str) -> Callable[..., dict[str, NDArray[Any]]]:
            def run(**inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
                calls[name] += 1
                if name in writers:
                    writers[name](inputs)
                return bench.sessions[name].run(inputs)

            return run

        runners = {name: runner(name) for name in bench.sessions}
        given = user_function.function(function, *user_function.EVALUATE)(
            runners.get(MAIN, runners)
        )
        samples = []
        for item in given:
            samples.append(_yielded(item) if isgenerator(given) else (item, _ALONE))
            bench.progress("evaluating", len(samples), 0)
            for name, count in calls.items():
                ends[name].append(count)
    rows = [[float(x) for x in np.atleast_1d(np.asarray(row, np.float64))] for row, _ in samples]
    groups = [group for _, group in samples if group is not _ALONE]
    if groups and len(groups) < len(samples):
        raise BadData(
            f"{function} yields a group with {len(groups)} of "
            f"{wording.count(len(samples), 'record')}",
            fix="yield (record, group) for every sample; a group of None stands alone",
        )
    answer = {"records": [rows], "calls": calls, "peak_rss": peak_rss()}
    return answer | ({"groups": groups, "ends": ends} if groups else {})


def _yielded(item: Any) -> tuple[Any, Any]:
    """Return what a generator yielded as a record and its group: a text, or None."""
    if not isinstance(item, tuple) or len(item) != 2:
        return item, _ALONE
    record, group = item
    return record, None if group is None else str(group)


def describe(bench: Workbench) -> dict[str, Any]:
    """Run one sample and return dtype and shape of every output: the last rung of the ladder."""
    outputs = bench.sessions[MAIN].run(bench.sample(0))
    return {"shapes": {name: [str(a.dtype), list(a.shape)] for name, a in outputs.items()}}


def optimize(bench: Workbench, out: str) -> dict[str, Any]:
    """Let the runtime rewrite the model file as the backend says, and write it to `out`.

    onnxruntime rewrites the graph at the backend's level; OpenVINO and TensorRT write their own
    formats. A backend whose compiled nodes cannot be saved names another that rewrites for it.
    """
    own = bench.job.backend
    backend = own.builds_with(Capabilities(state=own.state(own.missing())))
    if not isinstance(backend, Cpu | Cuda | Openvino | TensorrtEngine):
        raise BadData(f"{backend.name()} does not write optimized files", fix="use --on cpu")
    backend.save(bench.job.models[MAIN], Path(out))
    return {}


def precompile(bench: Workbench, out: str) -> dict[str, Any]:
    """Let the backend's provider compile the model and write it to `out`; say for what it is."""
    backend = bench.job.backend
    if not isinstance(backend, Compiling):
        raise BadData(f"{backend.name()} compiles no model ahead of time", fix="leave it out")
    backend.compile(bench.job.models[MAIN], Path(out))
    return {"made_for": dict(backend.compiled_for())}


_TASKS = (
    *(load, score, evaluate, describe, optimize, precompile),
    *(first, burst, device, details, usage, footprint, rest),
    *(
        observe,
        extents,
        record,
        laps,
        recorded,
        peaks,
        roll,
        capabilities,
        prepare,
        takes,
    ),
    *(describe_module, answer_module, export_module),
)
TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {task.__name__: task for task in _TASKS}
"""Name of a command -> its task."""


def _label(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value
