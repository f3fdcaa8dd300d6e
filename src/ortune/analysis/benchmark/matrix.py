"""What is timed: models x backends x levels x threads, for every batch."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ortune.analysis.benchmark.interleave import Contestant
from ortune.core.backend import Backend, GraphLevel, graph_level
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.event import Note, Sink
from ortune.core.plugins.spelling import parse_list
from ortune.core.workload import Workload
from ortune.measurement.capabilities import demand


def backends(
    on: str | Sequence[str],
    threads: Sequence[int],
    levels: Sequence[str],
    sink: Sink,
    environments: Sequence[str] = (HERE,),
) -> list[Backend]:
    """Return every backend of `on` at every level and thread count, in that order, once each.

    A backend without levels is timed once and the sink is told.

    Raises:
        BackendMissing: One cannot run in one of the environments.
        BadSettings: There is no such environment, a field is given in `on` and to be expanded, or
            no backend has such a level.
    """
    found = parse_list(Backend, on if isinstance(on, str) else ",".join(on))
    levels = [graph_level(cast(GraphLevel, given)) for given in levels]
    for backend, given in found:
        for environment in environments:
            demand(backend, environment)
        for name, values in (("threads", threads), ("level", levels)):
            if values and name in given:
                option = "levels" if name == "level" else name
                raise BadSettings(
                    f"{name} is given in '{backend}' and by --{option}",
                    fix="leave one of them out",
                )
    for count in threads:
        if count < 1:
            raise BadSettings(f"--threads {count} cannot run", fix="give 1 or more: --threads 1,2")
    _known(levels, [backend for backend, _ in found])
    made = [
        one
        for backend, _ in found
        for leveled in _leveled(backend, levels, sink)
        for one in _threaded(leveled, threads)
    ]
    return list(dict.fromkeys(made))


def contestants(
    models: Sequence[Path],
    chosen: Sequence[Backend],
    workloads: Sequence[Workload],
    environments: Sequence[str] = (HERE,),
) -> list[list[Contestant]]:
    """Return one group for every workload: each model on each backend in each environment.

    Models are outermost, and environments innermost.
    """
    return [
        [
            Contestant(model, backend, workload, environment=environment)
            for model in models
            for backend in chosen
            for environment in environments
        ]
        for workload in workloads
    ]


def batched(workload: Workload, batches: Sequence[int]) -> list[Workload]:
    """Return the workload at every batch, or as it is.

    Raises:
        BadSettings: A batch is below 1, or the workload has one of its own.
    """
    if not batches:
        return [workload]
    for batch in batches:
        if batch < 1:
            raise BadSettings(f"batch {batch} is too small", fix="give 1 or more: --batches 1,8")
    if workload.batch:
        raise BadSettings(
            f"the batch is given in '{workload}' and beside it", fix="leave one of them out"
        )
    return [dataclasses.replace(workload, batch=batch) for batch in dict.fromkeys(batches)]


def allowed_levels(backend: Backend) -> tuple[str, ...]:
    """Return the levels that a backend's ``level`` field takes; empty where it has none."""
    hints = typing.get_type_hints(type(backend))
    return tuple(dict.fromkeys(map(graph_level, typing.get_args(hints.get("level")))))


def _known(levels: Sequence[str], found: Sequence[Backend]) -> None:
    known = dict.fromkeys(level for backend in found for level in allowed_levels(backend))
    for level in levels:
        if level not in known:
            names = ", ".join(known)
            raise BadSettings(
                f"no backend of --on has a level '{level}'",
                fix=f"use one of: {names}" if known else "leave --levels out",
            )


def _leveled(backend: Backend, levels: Sequence[str], sink: Sink) -> list[Backend]:
    own = allowed_levels(backend)
    if not levels:
        return [backend]
    if not own:
        sink(Note(f"{backend} has no levels: it is timed once"))
        return [backend]
    if unknown := [level for level in levels if level not in own]:
        sink(Note(f"{backend} has no level {', '.join(unknown)}: left out there"))
    changes: list[dict[str, Any]] = [{"level": level} for level in levels if level in own]
    return [dataclasses.replace(backend, **change) for change in changes]


def _threaded(backend: Backend, threads: Sequence[int]) -> list[Backend]:
    if not threads:
        return [backend]
    return [dataclasses.replace(backend, threads=count) for count in threads]
