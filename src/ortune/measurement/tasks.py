"""What a worker can be asked to do. Each task is a function of the bench and plain JSON values."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.core import codec, imports
from ortune.core.backend import Session, Tensors
from ortune.core.errors import BadData
from ortune.core.metric import Metric
from ortune.core.observer import Probe
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob

_CHUNK_NS = 2_000_000
"""Run-queue counters are read around chunks this long: reading them costs microseconds."""

_ROUNDS = 32
_ROUND_BYTES = 256 * 2**20

Round: TypeAlias = list[tuple[Session, Tensors]]
"""Calls that are timed as one."""


class Bench:
    """The live state of a worker: sessions and feeds."""

    def __init__(self, job: WorkerJob, stack: ExitStack) -> None:
        self.job = job
        self._stack = stack
        self.sessions: dict[str, Session] = {}
        self.feeds = {name: stream.Stream(path) for name, path in job.feeds.items()}
        self._rounds: list[Round] = []

    def open(self) -> None:
        """Open every model once."""
        for name, path in self.job.models.items():
            if name not in self.sessions:
                opened = self.job.backend.open(path, verbose=self.job.verbose)
                self.sessions[name] = self._stack.enter_context(opened)

    def any(self) -> Session:
        """Return the first session: its clock times all."""
        return next(iter(self.sessions.values()))

    def sample(self, index: int, name: str = MAIN) -> dict[str, NDArray[Any]]:
        """Return one sample, as one run takes it."""
        return self.feeds[name][index]

    def rounds(self, limit: int) -> list[Round]:
        """Return what timing cycles through, spread over the feeds.

        A round is one call of the only model. Of several models it holds calls of each, as many
        as its share of the recorded calls, so that a round's time stands for the whole job's.
        """
        fewest = min(len(feeds) for feeds in self.feeds.values())
        size = sum(
            array.nbytes * len(feeds) // fewest
            for feeds in self.feeds.values()
            for array in feeds[0].values()
        )
        count = max(1, min(limit, fewest, _ROUND_BYTES // max(1, size)))
        return [
            [
                (self.sessions[name], self._stacked(name, start + k))
                for name, feeds in self.feeds.items()
                for start in [turn * len(feeds) // count]
                for k in range(len(feeds) // fewest)
            ]
            for turn in range(count)
        ]

    def round(self, position: int) -> Round:
        """Return the round at a position of the endless timing cycle."""
        if not self._rounds:
            self._rounds = self.rounds(limit=_ROUNDS)
        return self._rounds[position % len(self._rounds)]

    def _stacked(self, name: str, index: int) -> Tensors:
        feeds = self.feeds[name]
        if self.job.batch <= 1:
            return {key: np.array(value) for key, value in feeds[index].items()}
        rows = [feeds[(index + k) % len(feeds)] for k in range(self.job.batch)]
        return stack(rows)


def stack(rows: Sequence[Tensors]) -> dict[str, NDArray[Any]]:
    """Concatenate samples along their first dimension; 0-d tensors are taken once."""
    made = {}
    for name, first in rows[0].items():
        if first.ndim == 0:
            made[name] = np.array(first)
            continue
        if any(row[name].shape[1:] != first.shape[1:] for row in rows):
            raise BadData(
                f"samples of input '{name}' differ in shape and cannot be batched",
                fix="pad the samples to one shape, or leave --batch out",
            )
        made[name] = np.concatenate([row[name] for row in rows])
    return made


def load(bench: Bench) -> dict[str, Any]:
    """Open the sessions: load time and placement."""
    start = time.perf_counter_ns()
    bench.open()
    taken = time.perf_counter_ns() - start
    placement: dict[str, int] = {}
    for opened in bench.sessions.values():
        for provider, count in opened.placement().items():
            placement[provider] = placement.get(provider, 0) + count
    return {"load_ns": taken, "placement": placement}


def first(bench: Bench) -> dict[str, Any]:
    """Run the first inference, which allocates and packs."""
    clock = bench.any().clock
    taken = 0
    for session, feeds in bench.rounds(limit=1)[0]:
        start = clock()
        session.run(feeds)
        taken += clock() - start
    return {"first_ns": taken, "peak_rss": peak_rss()}


def burst(bench: Bench, at: int, runs: int, each: int = 1, drop: int = 0) -> dict[str, Any]:
    """Time `runs` entries of `each` consecutive rounds of the cycle, from position `at`.

    Both sides of a pair get the same numbers, so entry i ran the same samples on both. The first
    `drop` rounds are not recorded. Run-queue waiting is read around chunks of at least 2 ms and
    holds for all entries of a chunk.
    """
    for position in range(drop):
        for session, feeds in bench.round(at + position):
            session.run(feeds)
    clock, waiting = bench.any().clock, bench.any().waited
    latency: list[int] = []
    waited: list[float] = []
    chunk_start, chunk_wait = clock(), waiting()
    for index in range(runs):
        calls = [call for k in range(each) for call in bench.round(at + index * each + k)]
        start = clock()
        for session, feeds in calls:
            session.run(feeds)
        end = clock()
        latency.append((end - start) // each)
        if end - chunk_start >= _CHUNK_NS or index == runs - 1:
            now = waiting()
            share = (now - chunk_wait) / max(1, end - chunk_start) if chunk_wait >= 0 else -1.0
            waited += [round(share, 4)] * (len(latency) - len(waited))
            chunk_start, chunk_wait = clock(), now
    return {"latency_ns": latency, "waited": waited}


def score(
    bench: Bench,
    indices: Sequence[int],
    metrics: Sequence[Mapping[str, Any]],
    expected: str | None = None,
    save: str | None = None,
    labels: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Run samples one by one; return a list of record rows for every metric.

    Args:
        bench: The worker's state.
        indices: Samples to run, in order.
        metrics: Encoded Metric plugins.
        expected: Stream of the baseline's outputs for exactly these samples; None scores the
            outputs against themselves.
        save: Stream file to write the outputs to.
        labels: One label a sample.
    """
    scorers = [codec.decode(Metric, dict(data)) for data in metrics]
    truth = stream.Stream(Path(expected)) if expected else None
    rows: list[list[list[float]]] = [[] for _ in scorers]
    session = bench.sessions[MAIN]

    def outputs() -> Iterator[dict[str, NDArray[Any]]]:
        for place, index in enumerate(indices):
            actual = session.run(bench.sample(index))
            wanted = truth[place] if truth else actual
            label = None if labels is None else [_label(labels[place])]
            for scorer, found in zip(scorers, rows, strict=True):
                found.append(scorer.records([wanted], [actual], label)[0].tolist())
            yield actual

    if save:
        stream.write(Path(save), outputs())
    else:
        for _ in outputs():
            pass
    return {"records": rows, "peak_rss": peak_rss()}


def observe(
    bench: Bench, indices: Sequence[int], probes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Answer every probe: as many passes over the samples as the slowest observer needs."""
    wanted = [codec.decode(Probe, dict(data)) for data in probes]
    states = [probe.observer.start() for probe in wanted]
    session = bench.sessions[MAIN]
    for turn in range(max((probe.observer.passes for probe in wanted), default=0)):
        for index in indices:
            feeds = bench.sample(index)
            values = {**feeds, **session.run(feeds)}
            for probe, state in zip(wanted, states, strict=True):
                if turn < probe.observer.passes:
                    state.update(turn, values[probe.tensor])
    ranges = {
        probe.tensor: codec.encode(state.result())
        for probe, state in zip(wanted, states, strict=True)
    }
    return {"ranges": ranges, "peak_rss": peak_rss()}


def evaluate(
    bench: Bench, function: str, record: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Call the user's ``fn(run)`` and return its records.

    Args:
        bench: The worker's state.
        function: ``pkg.module:name``.
        record: Model name -> stream file that receives the inputs of its calls.
    """
    calls = dict.fromkeys(bench.sessions, 0)
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
        given = runners[MAIN] if MAIN in runners else Runners(runners)
        found = imports.function(function)(given)
        rows = [[float(x) for x in np.atleast_1d(np.asarray(row, np.float64))] for row in found]
    return {"records": [rows], "calls": calls, "peak_rss": peak_rss()}


class Runners(dict[str, Callable[..., dict[str, NDArray[Any]]]]):
    """What an evaluate function gets for several models: ``run["decoder"](**inputs)``."""


def describe(bench: Bench, index: int = 0) -> dict[str, Any]:
    """Run one sample and return dtype and shape of every output: the last rung of the ladder."""
    outputs = bench.sessions[MAIN].run(bench.sample(index))
    return {"shapes": {name: [str(a.dtype), list(a.shape)] for name, a in outputs.items()}}


def optimize_offline(bench: Bench, out: str) -> dict[str, Any]:
    """Let the runtime rewrite the model file at the backend's level and write it to `out`."""
    backend = bench.job.backend
    if not isinstance(backend, Cpu):
        raise BadData(f"{backend.name()} does not write optimized files", fix="use --on cpu")
    backend.save(bench.job.models[MAIN], Path(out))
    return {}


def peak_rss() -> int:
    """Return this process's peak resident set in bytes, 0 where it cannot be read."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "load": load,
    "first": first,
    "burst": burst,
    "score": score,
    "observe": observe,
    "evaluate": evaluate,
    "describe": describe,
    "optimize": optimize_offline,
}


def _label(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value
