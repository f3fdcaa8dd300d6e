"""Time models on backends side by side in one interleaved run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortune.analysis.benchmark import frames, matrix
from ortune.analysis.benchmark.interleave import Contestant, TimedRow, contest, describe_row
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.benchmark.result import BenchResult, result
from ortune.core import custom_ops
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.fields import paths
from ortune.core.reading import read_workload
from ortune.core.request import verb
from ortune.data import given
from ortune.measurement.machine import noise
from ortune.measurement.machine.energy import energy
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file


def run(asked: Bench) -> BenchResult:
    """Time models x backends x levels x threads, at every batch, in one interleaved run.

    With the user's frame around the model where one is asked for.
    """
    on = (asked.on,) if isinstance(asked.on, str) else asked.on
    equipped = [custom_ops.equipped(one, asked.custom_ops) for one in on]
    where = tuple(dict.fromkeys(asked.environment)) or (HERE,)
    chosen = matrix.backends(equipped, asked.threads, asked.levels, asked.sink, where)
    if asked.end_to_end:
        return frames.run(asked, chosen, where)
    driven = matrix.batched(read_workload(asked.workload, asked.batch), asked.batches)
    return timed(matrix.contestants(paths(asked.models), chosen, driven, where), asked)


bench = verb(Bench, run)


def race(contestants: Sequence[tuple[Path, Backend]], **how: Any) -> BenchResult:
    """Time pairs of model and backend as `bench` does; the first is the measure of the others.

    Args:
        how: Fields of `Bench` but its models and where to run.
    """
    asked = Bench((), **how)
    driven = read_workload(asked.workload, asked.batch)
    return timed([[Contestant(path, backend, driven) for path, backend in contestants]], asked)


def _streams(groups: Sequence[Sequence[Contestant]], asked: Bench, root: Path) -> dict[Path, Path]:
    """Write the samples of every model and return its stream; each must take the largest batch.

    Made-up inputs are given by name for all models together: a name that another model has is that
    one's, and one that none has is refused.
    """
    batch = max(one.workload.batch for group in groups for one in group)
    models = dict.fromkeys(one.model for group in groups for one in group)
    inputs = {path: model_facts.facts(file.load(path)).inputs for path in models}
    every = {one.name for specs in inputs.values() for one in specs}
    found = {}
    for count, (path, specs) in enumerate(inputs.items()):
        others = every - {one.name for one in specs}
        found[path] = given.samples(
            asked.data,
            specs,
            root / f"{count}",
            batch=batch,
            shapes={name: shape for name, shape in asked.shapes.items() if name not in others},
            ranges={name: ends for name, ends in asked.ranges.items() if name not in others},
            sink=asked.sink,
        ).stream
    return found


def timed(groups: Sequence[Sequence[Contestant]], asked: Bench) -> BenchResult:
    """Time groups of contestants as asked; see `contest`."""
    if not all(groups):
        raise BadSettings("there is nothing to time", fix="give a model and a backend")
    first = groups[0][0]
    meters = energy()
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder)
        streams = _streams(groups, asked, root)
        raced = [[TimedRow(one, streams[one.model]) for one in group] for group in groups]
        if asked.self_check:
            raced[0].append(TimedRow(replace(first, again=True), streams[first.model]))
        before = noise.snapshot()
        contest(raced, root, asked.seconds, meters, asked.sets, asked.sink)
        record = noise.between(before, noise.snapshot())
        every = [row for group in raced for row in group]
    digests = {path: file.digest(path) for path in streams}
    made = [describe_row(one, digests[one.contestant.model], meters) for one in every]
    return result(raced, made, record)
