"""The public verb: time models on backends side by side in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel
from ortune.core.event import Note, Sink, silent
from ortune.core.facts import Facts
from ortune.core.spelling import parse_list
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.data import feeds as data_feeds
from ortune.data import synthetic
from ortune.measurement import noise, stats
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine import machine, versions
from ortune.measurement.pairs import burst, join, pace, warm
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.model import facts as model_facts
from ortune.model import file
from ortune.workloads.latency import Latency

_RESTARTS = 3


@dataclass
class _Row:
    """One contestant and everything measured of it."""

    model: Path
    backend: Backend
    stream: Path
    loads: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    peak_rss: int = 0
    placement: Mapping[str, int] = field(default_factory=dict)
    turns: list[list[Burst]] = field(default_factory=list)
    error: str = ""


def bench(
    models: str | Path | Sequence[str | Path],
    *,
    on: str | Sequence[str] = "cpu",
    data: str | Path | Callable[[], Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batch: int = 0,
    seconds: float = 10,
    sink: Sink = silent,
) -> dict[str, Any]:
    """Time every model on every backend, in turns, in several sets of fresh processes.

    Returns:
        ``rows`` (raw nanoseconds included), ``ratios`` of each row's latency to the first's
        (value, low, high at 99 %), and ``winner``: index of the fastest, null inside the noise.

    Raises:
        OrtuneError: A model or the data cannot be used, or the first row does not run.
    """
    paths = [Path(models)] if isinstance(models, (str, Path)) else [Path(path) for path in models]
    specs = on if isinstance(on, str) else ",".join(on)
    backends = [backend for backend, _ in parse_list(Backend, specs)]
    for backend in backends:
        if reason := backend.missing():
            raise BackendMissing(f"backend '{backend.name()}' cannot run here", fix=reason)
    contestants = [(path, backend) for path in paths for backend in backends]
    return race(
        contestants,
        data=data,
        shapes=shapes,
        ranges=ranges,
        batch=batch,
        seconds=seconds,
        sink=sink,
    )


def race(
    contestants: Sequence[tuple[Path, Backend]],
    *,
    data: str | Path | Callable[[], Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batch: int = 0,
    seconds: float = 10,
    sink: Sink = silent,
) -> dict[str, Any]:
    """Time pairs of model and backend as `bench` does; the first is the measure of the others."""
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder)
        streams: dict[Path, Path] = {}
        for path in dict.fromkeys(path for path, _ in contestants):
            facts = model_facts.facts(file.load(path))
            own = root / f"{len(streams)}"
            streams[path] = _stream(facts, own, data, shapes, ranges, sink)
        rows = [_Row(path, backend, streams[path]) for path, backend in contestants]
        for _ in range(_RESTARTS):
            _turn(rows, root, batch, seconds / _RESTARTS)
    return _result(rows)


def _stream(
    facts: Facts,
    folder: Path,
    data: str | Path | Callable[[], Any] | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
    ranges: Mapping[str, tuple[float, float]] | None,
    sink: Sink,
) -> Path:
    if data is not None:
        return data_feeds.load(data, facts.inputs, folder).stream
    made = synthetic.make(facts.inputs, folder, shapes=shapes or {}, ranges=ranges or {})
    for text in made.notes:
        sink(Note(text))
    return made.stream


def _turn(rows: Sequence[_Row], root: Path, batch: int, seconds: float) -> None:
    """Start a process for every row and time all in the order A B C C B A until time is up."""
    with ExitStack() as stack:
        live: dict[int, Worker] = {}
        for index, row in enumerate(rows):
            if row.error:
                continue
            job = WorkerJob(
                {MAIN: row.model.resolve()},
                row.backend,
                {MAIN: row.stream},
                worker_folder(root / "workers", "bench"),
                Latency(batch=batch),
            )
            worker = stack.enter_context(Worker(job))
            try:
                _ready(row, worker)
                live[index] = worker
            except WorkerFailed as error:
                row.error = error.failure.reason
        _first_lives(rows, live)
        _blocks(rows, live, seconds)


def _ready(row: _Row, worker: Worker) -> None:
    loaded, first = worker.ask("load"), worker.ask("first")
    row.loads.append(loaded["load_ns"])
    row.firsts.append(first["first_ns"])
    row.peak_rss = max(row.peak_rss, first["peak_rss"])
    row.placement = loaded["placement"]


def _first_lives(rows: Sequence[_Row], live: Mapping[int, Worker]) -> None:
    """Refuse a race without its measure."""
    if 0 not in live:
        raise BadModel(
            f"{rows[0].model} does not run on {rows[0].backend}: {rows[0].error}",
            fix="check the model, the data and the backend",
        )


def _blocks(rows: Sequence[_Row], live: dict[int, Worker], seconds: float) -> None:
    quick: dict[int, int] = {}
    for index, worker in list(live.items()):
        try:
            quick[index] = warm(worker)
        except WorkerFailed as error:
            rows[index].error = error.failure.reason
            del live[index]
    _first_lives(rows, live)
    size = pace(max(quick.values()), min(quick.values()))
    cost = 2 * size.span * sum(quick.values()) / 1e9
    count = max(4, min(30, round(seconds / max(cost, 1e-6))))
    for row in rows:
        row.turns.append([])
    for turn in range(count):
        at = 2 * size.span * turn
        up = {i: burst(live[i], size, at) for i in live}
        down = {i: burst(live[i], size, at + size.span) for i in reversed(list(live))}
        for i in live:
            rows[i].turns[-1].append(join(up[i], down[i]))


def _ratio(one: _Row, base: _Row) -> Interval:
    pairs = [
        Pair(tuple(Block(b, a) for a, b in zip(mine, theirs, strict=True)))
        for mine, theirs in zip(one.turns, base.turns, strict=True)
    ]
    return stats.ratio(pairs)


def _result(rows: Sequence[_Row]) -> dict[str, Any]:
    ratios: list[Interval | None] = [None if r.error else _ratio(r, rows[0]) for r in rows]
    ratios[0] = Interval(1.0, 1.0, 1.0)
    order = sorted((i for i, found in enumerate(ratios) if found), key=lambda i: _value(ratios[i]))
    winner = None
    if len(order) > 1 and _ratio(rows[order[0]], rows[order[1]]).high < 1:
        winner = order[0]
    return {
        "rows": [_row(row) for row in rows],
        "ratios": [
            None if r is None else {"value": r.value, "low": r.low, "high": r.high} for r in ratios
        ],
        "winner": winner,
        "machine": machine(),
        "versions": versions(),
        "noise": noise.now(),
    }


def _value(found: Interval | None) -> float:
    return float("inf") if found is None else found.value


def _row(row: _Row) -> dict[str, Any]:
    latency = [ns for turn in row.turns for one in turn for ns in one.latency_ns]
    named: dict[str, Any] = {
        "model": str(row.model),
        "backend": str(row.backend),
        "error": row.error or None,
        "size": file.size(row.model),
        "peak_rss": row.peak_rss,
        "placement": dict(row.placement),
        "load_ns": row.loads,
        "first_ns": row.firsts,
        "latency_ns": latency,
    }
    if latency:
        named |= {
            "mean_ns": float(np.mean(latency)),
            "sd_ns": float(np.std(latency)),
            "min_ns": min(latency),
            "max_ns": max(latency),
            **{f"p{p}_ns": stats.percentile(latency, p) for p in (50, 90, 99)},
        }
    return named
