"""The user's frame around the engine: what a model's speed is worth in a whole pipeline."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortune.analysis.benchmark import matrix
from ortune.analysis.benchmark.interleave import (
    Contestant,
    Ratios,
    TimedRow,
    contest,
    describe_row,
    pairs,
)
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.benchmark.result import PER_FRAME, BenchResult, Pipeline, result
from ortune.core.backend import Backend
from ortune.core.errors import BadData
from ortune.core.event import Note
from ortune.core.facts import TensorSpec
from ortune.core.fields import paths
from ortune.core.plugins.spelling import parse
from ortune.core.session import Tensors
from ortune.data import given, sources, stream
from ortune.engine import archive
from ortune.measurement.machine import noise
from ortune.measurement.machine.energy import energy
from ortune.measurement.timing import stats
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file
from ortune.workloads.latency import Latency


def timed(
    raced: Sequence[Sequence[TimedRow]],
    told: Sequence[Sequence[tuple[TimedRow, Mapping[str, Any]]]],
    asked: Bench,
    root: Path,
) -> BenchResult:
    """Time groups of rows and return what they come to.

    Args:
        raced: The rows of a group take turns.
        told: The same rows by what they are compared with: the first of a group is its measure.
            Beside each is what it tells in the place of what every row does.
        asked: Seconds and sets.
        root: Folder for the files of workers.

    Raises:
        BadModel: The first row of a group does not run.
    """
    meters = energy()
    before = noise.snapshot()
    contest(raced, root, asked.seconds, meters, asked.sets, asked.sink)
    record = noise.between(before, noise.snapshot())
    models = dict.fromkeys(row.contestant.model for group in raced for row in group)
    known = {path: _identity(path) for path in models}
    made = [
        {**describe_row(one, known[one.contestant.model][0], meters, size), **more}
        for group in told
        for one, more in group
        for size in (known[one.contestant.model][1],)
    ]
    return result([[one for one, _ in group] for group in told], made, record)


def _identity(path: Path) -> tuple[str, int]:
    """Return a file's digest and size, weights beside a model included."""
    if not archive.is_bundle(path):
        return file.digest(path), file.size(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32], path.stat().st_size


_WORKER = "ortune.analysis.benchmark.frame_worker"
_SAME: Mapping[str, str] = {}


def run(asked: Bench, chosen: Sequence[Backend], environments: Sequence[str]) -> BenchResult:
    """Time a frame around every model on every backend, and every plan of every bundle.

    Every plan has two processes: one runs frames, one the calls that these make of the engine.
    All take turns, so that each ratio is of pairs.

    Raises:
        BadData: The frame fails, does not call the engine, or there are no samples for it.
    """
    every: list[Contestant] = []
    for path in paths(asked.models):
        on = _planned(path) if archive.is_bundle(path) else chosen
        found = matrix.contestants([path], on, [Latency()], environments)
        every += [contestant for group in found for contestant in group]
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder)
        feeds = _samples(asked, every[0].model, root)
        whole = [TimedRow(_in(one, "frame", asked.end_to_end), feeds) for one in every]
        models = [TimedRow(_in(one, "model", asked.end_to_end), feeds) for one in every]
        took = {"workload": f"frame({asked.end_to_end})", "measure": PER_FRAME}
        told: list[list[tuple[TimedRow, Mapping[str, str]]]]
        told = [[(row, took) for row in whole], [(row, _SAME) for row in models]]
        turns = [row for pair in zip(whole, models, strict=True) for row in pair]
        timings = timed([turns], told, asked, root)
    return replace(timings, pipelines=tuple(_pipelines(timings, whole, models)))


def _in(one: Contestant, role: str, frame: str) -> Contestant:
    """Return a contestant whose runs are frames, or the model's part of them."""
    return replace(one, program=(_WORKER, role, frame))


def _planned(bundle: Path) -> list[Backend]:
    """Return the backends of a bundle's plans, the first first."""
    with archive.opened(bundle) as (_, manifest):
        plans = dict.fromkeys(plan.backend for plan in manifest.plans)
    return [parse(Backend, text) for text in plans]


def _samples(asked: Bench, model: Path, root: Path) -> Path:
    """Write what frames are given: what a source yields, whole, or made-up inputs of the model.

    Raises:
        BadData: There is none.
    """
    inputs, data = _inputs(model), asked.data
    if data is None:
        shapes, ranges = asked.shapes, asked.ranges
        return given.samples(
            None, inputs, root, shapes=shapes, ranges=ranges, sink=asked.sink
        ).stream

    def note(text: str) -> None:
        asked.sink(Note(text))

    def every() -> Iterator[Tensors]:
        for block in sources.open_source(data, inputs, note):
            yield {name: column.read() for name, column in block.columns.items()}

    path = root / "frames.stream"
    if not stream.write(path, every()):
        raise BadData(f"no samples in {sources.name(data)}", fix="give at least one sample")
    return path


def _inputs(model: Path) -> Sequence[TensorSpec]:
    if not archive.is_bundle(model):
        return model_facts.facts(file.load(model)).inputs
    with archive.opened(model) as (_, manifest):
        found = list(manifest.signatures.values())
    return found[0].inputs if len(found) == 1 else ()


def _pipelines(
    found: BenchResult, whole: Sequence[TimedRow], models: Sequence[TimedRow]
) -> Iterator[Pipeline]:
    """Yield what each contestant's two rows say together."""
    learnt = Ratios([whole]).learnt() + Ratios([models]).learnt()
    for at, (frame, model) in enumerate(zip(whole, models, strict=True)):
        beside = at + len(whole)
        share = None
        if not (frame.error or model.error):
            share = stats.ratio(pairs(model, frame), learnt=learnt)
        yield Pipeline(
            at,
            beside,
            _per_second(found, at),
            _per_second(found, beside),
            share,
            found.ratios[at],
            found.ratios[beside],
        )


def _per_second(found: BenchResult, row: int) -> float | None:
    typical = found.rows[row].get("typical_ns")
    return 1e9 / typical if typical else None
