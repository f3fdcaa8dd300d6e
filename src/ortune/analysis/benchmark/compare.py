"""Saved runs against each other, for readers and continuous integration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.analysis.benchmark.requests import Compare
from ortune.analysis.benchmark.results_file import (
    FIELDS,
    RunDifference,
    SavedRow,
    SavedRun,
    differences,
    direct,
    match,
    read,
    related,
)
from ortune.core.errors import BadData, BadSettings
from ortune.core.fields import paths
from ortune.core.result import TableResult
from ortune.core.trial import Interval


@dataclass(frozen=True)
class ComparedRow:
    """A row of the reference and the same one of another run.

    Attributes:
        name: For a person; of the other row what differs.
        rows: Index in each file.
        same_model: By its digest; None when one is not known.
        how: Whether latencies are compared directly, or relative to which row.
        judged: Whether the latency is.
        error: Why each failed, if it did.
        latency: Ratio of the other to the reference; None when one failed.
        p99: Ratio, like `memory`, `size` and `load`; None when one is not known.
        regressions: Metrics over their thresholds, or ``error``.
    """

    name: str
    model: str
    backend: str
    workload: str
    batch: int
    rows: tuple[int, int]
    same_model: bool | None
    how: str
    judged: bool
    error: tuple[str | None, str | None]
    latency: Interval | None
    p99: float | None
    memory: float | None
    size: float | None
    load: float | None
    regressions: tuple[str, ...]
    verdict: str

    def ratio(self, metric: str) -> float | None:
        """Return a ratio by the metric's name."""
        found: float | None = getattr(self, metric)
        return found


@dataclass(frozen=True)
class ComparedRun:
    """A run against the reference.

    Attributes:
        too_noisy: Files that were measured on a machine too noisy for a verdict.
        only_reference: Rows that the other one lacks.
        only_other: Rows that the reference lacks.
    """

    reference: str
    other: str
    same_machine: bool
    too_noisy: tuple[str, ...]
    differs: tuple[RunDifference, ...]
    rows: tuple[ComparedRow, ...]
    only_reference: tuple[str, ...]
    only_other: tuple[str, ...]


@dataclass(frozen=True)
class ComparedFile:
    """A saved run: its number of rows, machine and versions."""

    path: Path
    rows: int
    machine: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class CompareResult(TableResult):
    """Saved runs against the first of them.

    Attributes:
        thresholds: Metric -> share by which it may grow.
        comparisons: One for every file after the first.
        regressions: How many rows regressed.
    """

    headline = ("regressions", "thresholds")

    thresholds: Mapping[str, float]
    files: tuple[ComparedFile, ...]
    comparisons: tuple[ComparedRun, ...]
    regressions: int

    @property
    def rows(self) -> tuple[ComparedRow, ...]:
        """The rows of all comparisons."""
        return tuple(row for one in self.comparisons for row in one.rows)


METRICS = ("latency", "p99", "memory", "size", "load")
"""What a threshold may be set for; all but latency are compared as they stand."""
_TIMES = ("p99", "load")
"""Those that another or a noisy machine changes; sizes and memory are judged anywhere."""
THRESHOLDS = {"latency": 0.05}
_NOISY, _OTHER = "too noisy a machine", "another machine"
_NO_BASE = "nothing to relate it to"


@dataclass(frozen=True)
class _Judging:
    """What of a row is judged.

    Attributes:
        limits: Metric -> share by which it may grow.
        why_not: Why its latency is not judged; empty when it is.
        times: Whether times as they stand are.
    """

    limits: Mapping[str, float]
    why_not: str
    times: bool


def run(asked: Compare) -> CompareResult:
    """Compare saved runs with the first of them, row by row.

    A latency regression is an estimate over 1 + threshold whose 99 % interval excludes 1. On the
    same machine latencies are compared directly. On another machine no time is judged, unless
    both runs hold the same first row: then a row's ratio to it is compared, which holds across
    machines. Nor is a time of a run whose machine was too noisy for a verdict.
    """
    limits, given = {**THRESHOLDS, **asked.thresholds}, paths(asked.files)
    if len(given) < 2:
        raise BadData("one run has nothing to be compared with", fix="give two files or more")
    for name, limit in limits.items():
        if name not in METRICS:
            raise BadSettings(f"no metric '{name}'", fix=f"use one of: {', '.join(METRICS)}")
        if not 0 <= limit < math.inf:
            raise BadSettings(
                f"{limit} is not a threshold for {name}", fix="give a share such as 0.05 or 5%"
            )
    for name in asked.by:
        if name not in FIELDS:
            raise BadSettings(f"rows have no '{name}'", fix=f"use some of: {', '.join(FIELDS)}")
    runs = [read(path) for path in given]
    found = [_comparison(runs[0], run, asked, limits) for run in runs[1:]]
    files = [ComparedFile(run.path, len(run.rows), run.machine, run.versions) for run in runs]
    regressed = sum(bool(row.regressions) for one in found for row in one.rows)
    return CompareResult(limits, tuple(files), tuple(found), regressed)


def _comparison(
    one: SavedRun, two: SavedRun, asked: Compare, limits: Mapping[str, float]
) -> ComparedRun:
    pairs, only_one, only_two = match(one, two, asked.by)
    if not pairs:
        raise BadData(
            f"no row of {two.path} is in {one.path}: {two.rows[0]} is not {one.rows[0]}",
            fix="match by less, such as --by backend, or by order with --by order",
        )
    differs = differences(one, two)
    same = not any(entry.where == "machine" for entry in differs)
    noisy = tuple(str(run.path) for run in (one, two) if run.too_noisy)
    alike = same or asked.across_machines
    rows = []
    for mine, other in pairs:
        bases = _common(one, two, mine, other) if asked.relative or not alike else None
        direct_counts = alike and not asked.relative
        why_not = "" if bases or direct_counts else _NO_BASE if alike else _OTHER
        judging = _Judging(limits, _NOISY if noisy else why_not, times=alike and not noisy)
        rows.append(_row(mine, other, bases, judging))
    return ComparedRun(
        reference=str(one.path),
        other=str(two.path),
        same_machine=same,
        too_noisy=noisy,
        differs=differs,
        rows=tuple(rows),
        only_reference=tuple(map(str, only_one)),
        only_other=tuple(map(str, only_two)),
    )


def _common(
    one: SavedRun, two: SavedRun, mine: SavedRow, other: SavedRow
) -> tuple[SavedRow, SavedRow] | None:
    """Return the first rows of both sides where they are the same contestant and not this one."""
    base, other_base = one.base(mine), two.base(other)
    known = base.digest is not None and base.digest == other_base.digest
    alike = base.key(FIELDS[1:]) == other_base.key(FIELDS[1:])
    usable = not any(row.error for row in (base, other_base)) and _aligned(
        (mine, base), (other, other_base)
    )
    if known and alike and usable and base is not mine and other_base is not other:
        return base, other_base
    return None


def _aligned(*pairs: tuple[SavedRow, SavedRow]) -> bool:
    """Whether rows were timed in turns: as many blocks, with as many entries if those matter."""
    shapes = [
        [[burst.alike or len(burst.latency_ns) for burst in blocks] for blocks in row.sets]
        for pair in pairs
        for row in pair
    ]
    return all(shapes[k] == shapes[k + 1] for k in range(0, len(shapes), 2))


def _row(
    one: SavedRow,
    two: SavedRow,
    bases: tuple[SavedRow, SavedRow] | None,
    judging: _Judging,
) -> ComparedRow:
    limits = judging.limits
    grown = {
        name: two.figures[name] / one.figures[name]
        if name in one.figures and name in two.figures
        else None
        for name in METRICS[1:]
    }
    regressions: tuple[str, ...] = ()
    latency = None
    if one.error or two.error:
        verdict = _broken(one, two)
        regressions = ("error",) if two.error and not one.error else ()
        grown = dict.fromkeys(grown)
    else:
        latency = direct(one, two) if bases is None else related(one, bases[0], two, bases[1])
        slower = latency.value > 1 + limits["latency"] and latency.low > 1
        regressions = ("latency",) if slower and not judging.why_not else ()
        regressions += tuple(
            name
            for name, ratio in grown.items()
            if ratio is not None
            and name in limits
            and (judging.times or name not in _TIMES)
            and ratio > 1 + limits[name]
        )
        verdict = _verdict(latency, judging, regressions)
    return ComparedRow(
        name=_name(one, two),
        model=one.model,
        backend=one.backend,
        workload=one.workload,
        batch=one.batch,
        rows=(one.index, two.index),
        same_model=None if None in (one.digest, two.digest) else one.digest == two.digest,
        how="direct" if bases is None else f"relative to {bases[0]}",
        judged=not judging.why_not,
        error=(one.error, two.error),
        latency=latency,
        **grown,
        regressions=regressions,
        verdict=verdict,
    )


def _name(one: SavedRow, two: SavedRow) -> str:
    """Name a pair of rows; of the second one what differs."""
    if str(one) == str(two):
        return str(one)
    told = str(two).removeprefix(f"{one.model} on ") if one.model == two.model else str(two)
    return f"{one} -> {told}"


def _broken(one: SavedRow, two: SavedRow) -> str:
    if one.error and two.error:
        return "failed in both"
    return "fails now" if two.error else "failed before"


def _verdict(latency: Interval, judging: _Judging, regressions: Sequence[str]) -> str:
    if regressions:
        return f"regression: {', '.join(regressions)}"
    if judging.why_not:
        return f"not judged: {judging.why_not}"
    if latency.low > 1:
        return "slower, within the threshold"
    if latency.high < 1:
        return "faster"
    if not latency.bounded:
        return "not known: too few runs for an interval"
    over = latency.value > 1 + judging.limits["latency"]
    return "over the threshold, inside the noise" if over else "no difference"
