"""The tasks of a worker: functions of its workbench and plain JSON values."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from inspect import isgenerator
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.onnxruntime.engine_cache import CompilingBackend
from ortune.backends.runtimes.onnxruntime.session import list_device_kinds, list_providers
from ortune.backends.tensorrt_engine import TensorrtEngine
from ortune.core import wording
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BackendMissing, BadData, BadModel
from ortune.core.hardware import gpu
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.core.hardware.gpu import read_driver_versions
from ortune.core.hardware.memory import peak_rss
from ortune.core.metric import Metric
from ortune.core.plugins import codec, user_function
from ortune.core.session import DeviceTimed, InProcess, Recording, Tensors
from ortune.core.workload import Span
from ortune.data import stream
from ortune.measurement.job import MAIN
from ortune.measurement.machine.counters import LIVE, read_cpu_seconds
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.worker.exports import (
    answer_module,
    describe_module,
    export_module,
    write_answers,
)
from ortune.measurement.worker.observers import extents, observe, roll
from ortune.measurement.worker.self_agreement import compare_with_itself, explain_failure
from ortune.measurement.worker.workbench import Workbench, run_for_tensors

_ROUNDS, _FEWEST = 8, 3
_WARM = 3
_SLOW = 20_000_000  # ns of a run from which one warm-up is enough


def peaks(bench: Workbench, inputs: Mapping[str, Sequence[int]], seconds: float) -> dict[str, Any]:
    """Run every model in short bursts, round after round; return each round's least time.

    Models have one float32 input each, ``x``. On a busy machine the last rounds are left out.
    """
    few = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
    # Large tensors repeat these numbers, which is soon made; equal shapes share one.
    arrays = {shape: np.resize(few, shape) for shape in {tuple(s) for s in inputs.values()}}
    feeds = {name: arrays[tuple(shape)] for name, shape in inputs.items()}
    for name, feed in feeds.items():
        for turn in range(_WARM):
            if turn and _time_run(bench, name, feed) > _SLOW:
                break
    each = seconds / _ROUNDS / len(feeds) * 1e9
    least: dict[str, list[int]] = {name: [] for name in feeds}
    until = time.perf_counter() + 1.25 * seconds
    for turn in range(_ROUNDS):
        if turn >= _FEWEST and time.perf_counter() > until:
            break
        for name, feed in feeds.items():
            durations = [_time_run(bench, name, feed), _time_run(bench, name, feed)]
            while sum(durations) < each:
                durations.append(_time_run(bench, name, feed))
            least[name].append(min(durations))
    return {"least_ns": least}


def _time_run(bench: Workbench, name: str, feed: NDArray[np.float32]) -> int:
    session = bench.sessions[name]
    start = time.perf_counter_ns()
    session.run({"x": feed})
    return time.perf_counter_ns() - start


_STEP_S = 0.005
_IDLE_NS = 500_000  # CPU time in one step below which threads have stopped spinning


def first(bench: Workbench) -> dict[str, Any]:
    """Run the first inference, which allocates and packs; then once on every other lane."""
    lane, *other_lanes = bench.lanes
    duration = 0
    for session, feeds in lane.calls(0):
        start = lane.clock()
        session.run(feeds)
        duration += lane.clock() - start
    for other in other_lanes:
        for session, feeds in other.calls(0):
            session.run(feeds)
    return {"first_ns": duration, "peak_rss": peak_rss()}


def burst(bench: Workbench, at: int, runs: int, each: int = 1, drop: int = 0) -> dict[str, Any]:
    """Drive `runs` entries of `each` consecutive rounds of the cycle, from position `at`.

    Before them the round at `at` is run until it settles, at most `drop` times, not recorded.
    What an entry is, the workload says.

    Returns:
        ``alike``: whether it matters not which round an entry ran: all have one shape, and no
        schedule tells them apart. ``neighbours``: CPUs that other processes used, None where it
        cannot be read.
    """
    for position in range(len(bench.cycle)):  # into memory
        bench.round_at(position)
    alike = not bench.job.workload.scheduled and len(set(bench.shapes)) == 1
    session = next(iter(bench.sessions.values()))
    clock = session.clock
    start, before, began = clock(), _count_others_s(), time.monotonic()
    driven = bench.job.workload.drive(bench, Span(at, runs, each, drop))
    now, seconds = _count_others_s(), time.monotonic() - began
    neighbours = None
    if isinstance(session, InProcess) and now is not None and before is not None:
        neighbours = round((now - before) / max(seconds, 1e-9), 4)
    bench.runs += driven.runs
    if driven.details:
        bench.details.append(driven.details)
    return {
        "latency_ns": list(driven.latency_ns),
        "waited": list(driven.waited),
        "spent_ns": max(clock() - start, sum(driven.latency_ns)),
        "alike": alike,
        "neighbours": neighbours,
    }


def _count_others_s() -> float | None:
    """Return the CPU seconds of other processes so far; None where the kernel hides them."""
    busy, _, _ = read_cpu_seconds(LIVE, frozenset(usable_cpus()))
    return None if busy is None else busy - time.process_time()


def details(bench: Workbench) -> dict[str, Any]:
    """Return the details of the bursts since this was last asked, and forget them."""
    burst_details = list(bench.details)
    bench.details.clear()
    return {"details": burst_details}


def usage(bench: Workbench) -> dict[str, Any]:
    """Read the CPU clock of all threads, user and system, and the runs so far.

    Taken before and after bursts, the differences are what a run costs.
    """
    return {"cpu_ns": time.process_time_ns(), "runs": bench.runs}


def footprint(bench: Workbench) -> dict[str, Any]:
    """Read this process's memory in bytes, its interpreter and the runtime's libraries included.

    Returns:
        ``rss``: resident now; ``uss``: of that, what no other process shares, None where it cannot
        be read; ``peak``: most that was ever resident; ``samples``: kept samples.
    """
    import psutil

    process, uss = psutil.Process(), None
    with suppress(psutil.Error, AttributeError):
        uss = process.memory_full_info().uss
    rss = process.memory_info().rss
    return {"rss": rss, "uss": uss, "peak": peak_rss(), "samples": bench.cached_bytes}


def wait_idle(bench: Workbench, limit_s: float = 0.5) -> dict[str, Any]:
    """Wait until threads have stopped spinning; return the CPU time that they spent on it.

    Runtimes let their threads spin after a run, so as to find the next one at once: the CPU that
    a pause costs, and a load on whatever is timed next.
    """
    start = last = time.process_time_ns()
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        time.sleep(_STEP_S)
        now = time.process_time_ns()
        if now - last < _IDLE_NS:
            break
        last = now
    return {"cpu_ns": time.process_time_ns() - start}


_LEAST_RUNS, _MOST_RUNS, _COMPUTE_NS = 3, 50, 20_000_000


def capabilities(bench: Workbench) -> dict[str, Any]:
    """Return the `Capabilities` of this process for the job's backend.

    Raises:
        BadSettings: The installed runtime does not know a setting.
    """
    missing = bench.job.backend.missing()
    offer = Capabilities(
        missing=missing,
        state=bench.job.backend.state(missing),
        effective_cpus=effective_cpus(),
        usable_cpus=usable_cpus(),
        instruction_sets=tuple(sorted(instruction_sets())),
        providers=list_providers(),
        devices=list_device_kinds(),
        versions=package_versions(),
        machine=describe_machine(),
        driver=read_driver_versions() if bench.job.backend.runs_on == "gpu" else {},
    )
    answer: dict[str, Any] = codec.encode(offer)
    return answer


def prepare(bench: Workbench) -> dict[str, Any]:
    """Import the runtime before a load is timed: all sessions of a process share it."""
    start = time.perf_counter_ns()
    bench.job.backend.missing()
    return {"import_ns": time.perf_counter_ns() - start}


def takes(bench: Workbench) -> dict[str, Any]:
    """Return execution provider -> names of the model's nodes that it would take."""
    assignments = bench.job.backend.takes(bench.job.models[MAIN])
    return {"takes": {provider: list(names) for provider, names in assignments.items()}}


def record(bench: Workbench, folder: str) -> dict[str, Any]:
    """Open the model with the profiler on; return about how many kernels it has.

    That the provider is missing, or took nothing, is an answer: the caller may do without it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        return {"nodes": sum(bench.record(Path(folder)).placement().values())}
    except BackendMissing as error:
        return {"missing": error.what, "remedy": error.fix}
    except BadModel as error:
        raise explain_failure(error, bench) from None


def laps(bench: Workbench, at: int, runs: int) -> dict[str, Any]:
    """Time single runs from position `at` of the cycle of samples."""
    latency = []
    for position in range(at, at + runs):
        for name, feeds in bench.round_at(position):
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
    durations: list[int] = []
    sessions = bench.sessions.values()
    if all(isinstance(session, DeviceTimed) for session in sessions):
        until = time.monotonic() + seconds
        for position in range(len(bench.cycle)):
            round_ns = 0
            for name, feeds in bench.round_at(position):
                session = bench.sessions[name]
                assert isinstance(session, DeviceTimed), "all of them can be timed"
                session.stage(feeds)  # its inputs are there then
                session.compute()
                runs: list[int] = []
                while len(runs) < _LEAST_RUNS or (
                    sum(runs) < _COMPUTE_NS and len(runs) < _MOST_RUNS
                ):
                    start = time.perf_counter_ns()
                    session.compute()
                    runs.append(time.perf_counter_ns() - start)
                round_ns += int(median(runs))
            durations.append(round_ns)
            if time.monotonic() > until:
                break
    read = gpu.list_gpus() if bench.job.backend.runs_on == "gpu" else ()
    return {"compute_ns": durations, "gpus": codec.encode(read)}


def end_recording(bench: Workbench, runs: int) -> dict[str, Any]:
    """End the recording and return the last `runs` runs."""
    session = bench.sessions[MAIN]
    assert isinstance(session, Recording), "recorded is asked after record"
    return {"recorded": codec.encode(session.recorded(runs))}


_ALONE = object()  # stands for the group of a record that was given without one


def load(bench: Workbench) -> dict[str, Any]:
    """Open the sessions: load time, placement, and whether engines came from the cache."""
    start = time.perf_counter_ns()
    try:
        bench.open_sessions()
    except BadModel as error:
        raise explain_failure(error, bench) from None
    duration = time.perf_counter_ns() - start
    placement: Counter[str] = Counter()
    for opened in bench.sessions.values():
        placement.update(opened.placement())
    cache = ("cold", "warm")[all(bench.warm)] if bench.warm else ""
    return {"load_ns": duration, "placement": placement, "cache": cache}


def unload(bench: Workbench) -> dict[str, Any]:
    """Close the sessions; `load` opens them again."""
    bench.close_sessions()
    return {}


def score(
    bench: Workbench,
    indices: Sequence[int],
    metrics: Sequence[Mapping[str, Any]],
    *,
    expected: str | None = None,
    save: str | None = None,
    labels: Sequence[Any] | None = None,
    beside: Sequence[Mapping[str, Any]] = (),
    switches: Mapping[str, Sequence[bool]] | None = None,
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """Run samples one by one; return a list of record rows for every metric.

    Args:
        expected: Stream of the baseline's outputs for exactly these samples; None scores the
            outputs against themselves.
        save: Stream file to write the outputs to.
        labels: One label a sample.
        beside: Metrics that are only shown: one that cannot score these outputs gets None.
        switches: Inputs that the samples do not have: name -> switches.
        without: Outputs that are not written.
    """
    more = {name: np.array(value, np.bool_) for name, value in (switches or {}).items()}
    scorers = [codec.decode(Metric, dict(data)) for data in metrics]
    shown = [codec.decode(Metric, dict(data)) for data in beside]
    decoded = labels and [np.asarray(v) if isinstance(v, list) else v for v in labels]
    truth = stream.Stream(Path(expected)) if expected else None
    rows: list[list[list[float]]] = [[] for _ in scorers]
    beside_rows: list[list[list[float]] | None] = [[] for _ in shown]
    session, backend = bench.sessions[MAIN], bench.job.backend

    def references() -> Iterator[Tensors]:
        if truth is not None:
            for place, index in enumerate(indices):
                yield backend.compared({**bench.sample(index), **more}, truth[place])

    means, shown_means = (
        [metric.average_expected(references()) if truth else None for metric in kind]
        for kind in (scorers, shown)
    )

    def outputs() -> Iterator[dict[str, NDArray[Any]]]:
        for place, index in enumerate(indices):
            bench.report_progress("running samples", place, len(indices))
            feeds = {**bench.sample(index), **more}
            actual = run_for_tensors(session, feeds)
            seen = backend.compared(feeds, actual)
            reference = backend.compared(feeds, truth[place]) if truth else seen
            label = None if decoded is None else [decoded[place]]
            for scorer, scorer_rows, mean in zip(scorers, rows, means, strict=True):
                record = scorer.records([reference], [seen], label, [feeds], mean)
                scorer_rows.append(record[0].tolist())
            for at, (scorer, mean) in enumerate(zip(shown, shown_means, strict=True)):
                scores = beside_rows[at]
                if scores is None:
                    continue
                try:
                    record = scorer.records([reference], [seen], label, [feeds], mean)
                    scores.append(record[0].tolist())
                except Exception:  # nobody asked for this figure: it must not stop the others
                    beside_rows[at] = None
            if truth is not None:
                truth.release()  # its pages count as memory in use
            yield {name: array for name, array in actual.items() if name not in without}

    if save:
        stream.write_stream(Path(save), outputs())
    else:
        deque(outputs(), maxlen=0)
    return {"records": rows, "beside": beside_rows, "peak_rss": peak_rss()}


def evaluate(
    bench: Workbench, function: str, record: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Call the user's ``fn(run)`` and return its records.

    For several models ``run`` is a dictionary: ``run["decoder"](**inputs)``. Of a generator that
    yields ``(record, group)`` the groups are returned too, and for every model the number of calls
    up to each yield.

    Args:
        function: ``FILE.py:NAME``.
        record: Model name -> stream file that receives the inputs of its calls.

    Raises:
        BadData: It yields groups with some records only.
    """
    calls = dict.fromkeys(bench.sessions, 0)
    ends: dict[str, list[int]] = {name: [] for name in calls}
    with ExitStack() as files:
        writers = {
            name: files.enter_context(stream.open_writer(Path(path)))
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
        result = user_function.import_function(function, *user_function.EVALUATE)(
            runners.get(MAIN, runners)
        )
        samples = []
        for item in result:
            row, group = item, _ALONE
            if isgenerator(result) and isinstance(item, tuple) and len(item) == 2:
                row, group = item
                group = None if group is None else str(group)
            samples.append((row, group))
            bench.report_progress("evaluating", len(samples), 0)
            for name, count in calls.items():
                ends[name].append(count)
    rows = [[float(x) for x in np.atleast_1d(np.asarray(row, np.float64))] for row, _ in samples]
    groups = [group for _, group in samples if group is not _ALONE]
    if groups and len(groups) < len(samples):
        raise BadData(
            f"{function} yields a group with {len(groups)} of "
            f"{wording.format_count(len(samples), 'record')}",
            fix="yield (record, group) for every sample; a group of None stands alone",
        )
    answer = {"records": [rows], "calls": calls, "peak_rss": peak_rss()}
    return answer | ({"groups": groups, "ends": ends} if groups else {})


def describe(bench: Workbench) -> dict[str, Any]:
    """Run one sample and return dtype and shape of every output: the last rung of the ladder."""
    outputs = run_for_tensors(bench.sessions[MAIN], bench.sample(0))
    return {"shapes": {name: [str(a.dtype), list(a.shape)] for name, a in outputs.items()}}


def optimize(bench: Workbench, out: str) -> dict[str, Any]:
    """Let the runtime rewrite the model file as the backend says, and write it to `out`.

    onnxruntime rewrites the graph at the backend's level; OpenVINO and TensorRT write their own
    formats. A backend whose compiled nodes cannot be saved names another that rewrites for it.
    """
    requested = bench.job.backend
    backend = requested.builds_with(Capabilities(state=requested.state(requested.missing())))
    if not isinstance(backend, Cpu | Cuda | Openvino | TensorrtEngine):
        raise BadData(f"{backend.name()} does not write optimized files", fix="use --on cpu")
    backend.save(bench.job.models[MAIN], Path(out))
    return {}


def precompile(bench: Workbench, out: str) -> dict[str, Any]:
    """Let the backend's provider compile the model and write it to `out`; say for what it is."""
    backend = cast(CompilingBackend, bench.job.backend)
    backend.compile(bench.job.models[MAIN], Path(out))
    return {"made_for": dict(backend.compiled_for())}


_TASKS = (
    *(load, unload, score, evaluate, describe, optimize, precompile),
    *(first, burst, device, details, usage, footprint, wait_idle),
    *(observe, extents, record, laps, end_recording, peaks, roll, capabilities, prepare, takes),
    *(describe_module, answer_module, export_module, write_answers, compare_with_itself),
)
TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {task.__name__: task for task in _TASKS}
"""Name of a command -> its task."""
