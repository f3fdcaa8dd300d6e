"""Saved runs of `bench` and `loadtest`: read, checked, and their rows matched.

What a file must hold, whoever wrote it: an object with ``rows``, a list of objects with ``model``
and ``backend`` (texts), and the times of a row in nanoseconds, as ``turns`` (a list of sets of
processes, each a list of blocks, each a list of times) or, as one set, as ``latency_ns``. A row
with an ``error`` needs none. Optional: ``workload``, ``batch``, ``digest``, ``again``, ``waited``,
``runs_each`` and ``alike`` beside ``turns``, ``p99_ns``, ``peak_rss``, ``size``, ``load_ns`` (a
list), ``environment``; beside ``rows``: ``machine`` and ``versions``, objects of texts, and
``judgement``, an object with ``too_noisy``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeAlias

from ortune.core.capabilities import HERE
from ortune.core.errors import BadData, OrtuneError
from ortune.core.plugins import codec
from ortune.core.trial import Burst, Interval, Pair
from ortune.measurement.timing import stats

FIELDS = ("model", "backend", "workload", "batch", "environment")
"""What makes two rows the same contestant; a model counts by its file's name."""
Key: TypeAlias = tuple[str, ...]
_Blocks: TypeAlias = Sequence[Sequence[Sequence[float]]]
_PARTS = 12
"""Parts of a row that holds nothing but `latency_ns`."""


@dataclass(frozen=True)
class _Row:
    model: str
    backend: str
    workload: str = "latency"
    batch: int = 0
    digest: str | None = None
    again: bool = False
    error: str | None = None
    latency_ns: tuple[float, ...] = ()
    turns: tuple[tuple[tuple[float, ...], ...], ...] = ()
    waited: tuple[tuple[tuple[float, ...], ...], ...] = ()
    runs_each: tuple[int, ...] = ()
    alike: bool = False
    p99_ns: float | None = None
    peak_rss: int | None = None
    size: int | None = None
    load_ns: tuple[float, ...] = ()
    environment: str = HERE


@dataclass(frozen=True)
class _Judgement:
    too_noisy: bool = False


@dataclass(frozen=True)
class _File:
    rows: tuple[_Row, ...]
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    judgement: _Judgement = _Judgement()


@dataclass(frozen=True)
class RunDifference:
    """A field of the machine or the versions that differs between two runs."""

    where: str
    field: str
    reference: str | None
    other: str | None


@dataclass(frozen=True)
class SavedRow:
    """A row of a saved run.

    Attributes:
        index: Its place in the file.
        sets: Blocks of every set of processes; empty for a row that failed.
        figures: ``p99``, ``memory``, ``size`` and ``load`` where they are known.
    """

    index: int
    model: str
    backend: str
    workload: str
    batch: int
    digest: str | None
    error: str | None
    sets: tuple[tuple[Burst, ...], ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    environment: str = HERE

    def key(self, by: Sequence[str]) -> Key:
        """Return what identifies the row."""
        return tuple(str(getattr(self, name)) for name in by)

    def __str__(self) -> str:
        """Name it for a person."""
        parts = [f"{self.model} on {self.backend}"]
        parts += [self.workload] if self.workload != "latency" else []
        parts += [f"in {self.environment}"] if self.environment != HERE else []
        parts += [f"batch {self.batch}"] if self.batch and "batch=" not in self.workload else []
        return ", ".join(parts)


@dataclass(frozen=True)
class SavedRun:
    """A saved run; rows that only repeat the first one are left out."""

    path: Path
    rows: tuple[SavedRow, ...]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    too_noisy: bool = False

    def base(self, row: SavedRow) -> SavedRow:
        """Return the first row of a row's workload and batch: they were timed in turns."""
        same = (row.workload, row.batch)
        return next(one for one in self.rows if (one.workload, one.batch) == same)


def read(path: Path) -> SavedRun:
    """Read a saved run.

    Raises:
        BadData: It is no such file.
    """
    fix = "give a file that `ortune bench --json FILE.json` or `ortune loadtest` wrote"
    try:
        text = path.read_text(encoding="utf-8")
        found = codec.decode(_File, json.loads(text), known_only=True)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadData(f"{path} is not JSON: {error}", fix=fix) from None
    except OrtuneError as error:
        raise BadData(f"{path} is not a saved run: {error.what}", fix=fix) from None
    rows = [_row(path, k, row) for k, row in enumerate(found.rows) if not row.again]
    if not rows:
        raise BadData(f"{path} holds no row", fix=fix)
    return SavedRun(path, tuple(rows), found.machine, found.versions, found.judgement.too_noisy)


def match(
    one: SavedRun, two: SavedRun, by: Sequence[str]
) -> tuple[list[tuple[SavedRow, SavedRow]], list[SavedRow], list[SavedRow]]:
    """Pair the rows of two runs; return the pairs and what only the first and the second have.

    Rows of one file that share a key are paired in their order. With `by` empty all are.
    """
    theirs = {_numbered(two, by)[k]: row for k, row in enumerate(two.rows)}
    keys = _numbered(one, by)
    pairs = [(row, theirs[key]) for key, row in zip(keys, one.rows, strict=True) if key in theirs]
    taken = {id(other) for _, other in pairs}
    return (
        pairs,
        [row for key, row in zip(keys, one.rows, strict=True) if key not in theirs],
        [row for row in two.rows if id(row) not in taken],
    )


def _numbered(run: SavedRun, by: Sequence[str]) -> list[tuple[Key, int]]:
    seen: Counter[Key] = Counter()
    found = []
    for row in run.rows:
        key = row.key(by)
        found.append((key, seen[key]))
        seen[key] += 1
    return found


def _row(path: Path, index: int, row: _Row) -> SavedRow:
    sets = () if row.error else _sets(path, index, row)
    known: dict[str, float | None] = {
        "p99": row.p99_ns,
        "memory": row.peak_rss,
        "size": row.size,
    }
    if row.load_ns:
        known["load"] = median(row.load_ns)
    figures = {
        name: float(value)
        for name, value in known.items()
        if value is not None and 0 < value < math.inf
    }
    name = row.model.replace("\\", "/").rpartition("/")[2]
    return SavedRow(
        index,
        name,
        row.backend,
        row.workload,
        row.batch,
        row.digest,
        row.error,
        sets,
        {} if row.error else figures,
        row.environment,
    )


def _sets(path: Path, index: int, row: _Row) -> tuple[tuple[Burst, ...], ...]:
    turns: _Blocks = row.turns or [_divided(row.latency_ns)]
    waited: _Blocks = row.waited or [[[0.0] * len(block) for block in turn] for turn in turns]
    each = row.runs_each or [1] * len(turns)
    fits = [[len(block) for block in turn] for turn in turns] == [
        [len(block) for block in turn] for turn in waited
    ]
    entries = [ns for turn in turns for block in turn for ns in block]
    if not fits or len(each) != len(turns) or not _times(entries):
        raise BadData(
            f"row {index} of {path} holds no usable times",
            fix="measure it again with `ortune bench --json FILE.json`",
        )
    return tuple(
        tuple(
            Burst(tuple(round(ns) for ns in block), tuple(waits), count, row.alike)
            for block, waits in zip(turn, waits_of, strict=True)
        )
        for turn, waits_of, count in zip(turns, waited, each, strict=True)
    )


def _divided(entries: Sequence[float]) -> list[Sequence[float]]:
    """Return consecutive parts, which stand for blocks: their spread is the error of the whole."""
    count = min(_PARTS, len(entries))
    edges = [k * len(entries) // count for k in range(count + 1)] if count else []
    return [entries[low:high] for low, high in pairwise(edges)]


def _times(entries: Sequence[float]) -> bool:
    return bool(entries) and all(0 <= ns < math.inf for ns in entries)


def differences(one: SavedRun, two: SavedRun) -> tuple[RunDifference, ...]:
    """Return what differs between the runs' machines and versions."""
    found: list[RunDifference] = []
    for where in ("machine", "versions"):
        mine: Mapping[str, str] = getattr(one, where)
        other: Mapping[str, str] = getattr(two, where)
        found += [
            RunDifference(where, name, mine.get(name), other.get(name))
            for name in dict.fromkeys([*mine, *other])
            if mine.get(name) != other.get(name)
        ]
    return tuple(found)


@dataclass(frozen=True)
class _Estimate:
    """A log-time or log-ratio of one run with the variance of its mean."""

    middle: float
    variance: float
    df: float


def direct(one: SavedRow, two: SavedRow) -> Interval:
    """Return the second row's latency over the first's, measured on two occasions.

    Welch's interval (doi:10.1093/biomet/34.1-2.28) on the difference of mean log-latencies. A
    run's variance is the spread between its sets of processes, moderated like that of pairs
    (`ortune.measurement.timing.stats.ratio`); to the sum is added what another occasion does,
    `stats.OCCASION_SD` squared, taken as known: separate runs are not paired, and more samples of
    the same occasion cannot remove it.
    """
    return _between(_alone(one), _alone(two))


def related(one: SavedRow, base: SavedRow, two: SavedRow, other_base: SavedRow) -> Interval:
    """Return the ratio of two rows' ratios to the row that they were timed in turns with.

    Within a run the ratio is paired, so what slows both alike cancels; between the runs it is
    Welch's interval as in `direct`.
    """
    return _between(_paired(one, base), _paired(two, other_base))


def _between(one: _Estimate, two: _Estimate) -> Interval:
    variance = one.variance + two.variance + stats.OCCASION_SD**2
    middle = two.middle - one.middle
    if not math.isfinite(variance):
        return Interval(math.exp(middle), 0.0, math.inf)
    spent = one.variance**2 / one.df + two.variance**2 / two.df
    df = min(200, int(variance**2 / spent)) if spent else 200
    half = stats.student(stats.CONFIDENCE, max(stats.PRIOR_DF, df)) * math.sqrt(variance)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _alone(row: SavedRow) -> _Estimate:
    return _estimate([Pair.of(map(_ones, blocks), blocks) for blocks in row.sets])


def _paired(row: SavedRow, base: SavedRow) -> _Estimate:
    return _estimate(list(map(Pair.of, base.sets, row.sets)))


def _ones(burst: Burst) -> Burst:
    """A baseline of 1 ns makes a log-ratio the logarithm of the latency itself."""
    count = len(burst.latency_ns)
    return replace(burst, latency_ns=(1,) * count, waited=(0.0,) * count)


def _estimate(pairs: Sequence[Pair]) -> _Estimate:
    middle, variance, df, n = stats.spread(pairs)
    return _Estimate(middle, variance / n, df)
