"""Saved runs of `bench` and `loadtest` against each other, for readers and CI.

What a file must hold, whoever wrote it: an object with ``rows``, a list of objects with ``model``
and ``backend`` (texts), and the times of a row in nanoseconds, as ``turns`` (a list of sets of
processes, each a list of blocks, each a list of times) or, as one set, as ``latency_ns``. A row
with an ``error`` needs none. Optional: ``workload``, ``batch``, ``digest``, ``again``, ``waited``,
``runs_each`` and ``alike`` beside ``turns``, ``p99_ns``, ``peak_rss``, ``size``, ``load_ns`` (a
list), ``environment``; beside ``rows``: ``machine`` and ``versions``, objects of texts, and
``judgement``, an object with ``too_noisy``.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Self, TypeAlias

from ortune.analysis.benchmark.requests import Compare
from ortune.core import regular_file
from ortune.core.capabilities import HERE
from ortune.core.errors import BadData, BadSettings, OrtuneError, suggest_names
from ortune.core.fields import make_paths
from ortune.core.plugins import codec, stored
from ortune.core.result import TableResult
from ortune.core.trial import Burst, Interval, Pair
from ortune.measurement.timing import stats

FIELDS = ("model", "backend", "workload", "batch", "environment")
"""What makes two rows the same contestant; a model counts by its file's name."""
METRICS = ("latency", "p99", "memory", "size", "load")
"""What a threshold may be set for; all but latency are compared as they stand."""
_TIMES = ("p99", "load")
"""Those that another or a noisy machine changes; sizes and memory are judged anywhere."""
THRESHOLDS = {"latency": 0.05}
Key: TypeAlias = tuple[str, ...]
_Times: TypeAlias = tuple[tuple[tuple[float, ...], ...], ...]
_PARTS = 12
"""Parts of a row that holds nothing but `latency_ns`."""


# --- saved runs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedRow:
    """A row of a saved run; `model` is its file's name."""

    model: str
    backend: str
    workload: str = "latency"
    batch: int = 0
    digest: str | None = None
    again: bool = False
    error: str | None = None
    latency_ns: tuple[float, ...] = ()
    turns: _Times = ()
    waited: _Times = ()
    neighbours: tuple[tuple[float | None, ...], ...] = ()
    runs_each: tuple[int, ...] = ()
    alike: bool = False
    p99_ns: float | None = None
    peak_rss: int | None = None
    size: int | None = None
    load_ns: tuple[float, ...] = ()
    environment: str = HERE
    index: int = 0

    @cached_property
    def sets(self) -> tuple[tuple[Burst, ...], ...]:
        """Blocks of every set of processes; empty where the times cannot be used.

        Parts of a lone list stand for blocks: their spread is the error of the whole.
        """
        if self.error:
            return ()
        turns, entries = self.turns, self.latency_ns
        if not turns:
            count = min(_PARTS, len(entries))
            edges = [k * len(entries) // count for k in range(count + 1)] if count else []
            turns = (tuple(entries[low:high] for low, high in pairwise(edges)),)
        waited = self.waited or tuple(
            tuple((0.0,) * len(block) for block in turn) for turn in turns
        )
        each = self.runs_each or (1,) * len(turns)
        neighbours = self.neighbours or tuple((None,) * len(turn) for turn in turns)
        times = [ns for turn in turns for block in turn for ns in block]
        fits = [list(map(len, turn)) for turn in turns] == [list(map(len, w)) for w in waited]
        usable = bool(times) and all(0 <= ns < math.inf for ns in times)
        fits = fits and list(map(len, turns)) == list(map(len, neighbours))
        if not fits or not usable or len(each) != len(turns):
            return ()
        return tuple(
            tuple(
                Burst(tuple(round(ns) for ns in block), waits, count, self.alike, neighbour_cpus)
                for block, waits, neighbour_cpus in zip(turn, waits_of, others_of, strict=True)
            )
            for turn, waits_of, others_of, count in zip(
                turns, waited, neighbours, each, strict=True
            )
        )

    @property
    def figures(self) -> Mapping[str, float]:
        """``p99``, ``memory``, ``size`` and ``load`` where they are known."""
        optional_figures = {"p99": self.p99_ns, "memory": self.peak_rss, "size": self.size}
        optional_figures["load"] = median(self.load_ns) if self.load_ns else None
        values = {
            name: float(value) for name, value in optional_figures.items() if value is not None
        }
        return {} if self.error else {n: v for n, v in values.items() if 0 < v < math.inf}

    def make_key(self, by: Sequence[str]) -> Key:
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
class _Judgement:
    too_noisy: bool = False


@dataclass(frozen=True)
class _File:
    rows: tuple[SavedRow, ...]
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    judgement: _Judgement = _Judgement()


@dataclass(frozen=True)
class SavedRun:
    """A saved run; rows that only repeat the first one are left out."""

    path: Path
    rows: tuple[SavedRow, ...]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    too_noisy: bool = False

    def find_base(self, row: SavedRow) -> SavedRow:
        """Return the first row of a row's workload and batch: they were timed in turns."""
        same = (row.workload, row.batch)
        return next(
            candidate for candidate in self.rows if (candidate.workload, candidate.batch) == same
        )

    def list_keys(self, by: Sequence[str]) -> list[tuple[Key, int]]:
        """Return what identifies every row: equal keys are numbered in their order."""
        seen: Counter[Key] = Counter()
        keys = []
        for row in self.rows:
            key = row.make_key(by)
            keys.append((key, seen[key]))
            seen[key] += 1
        return keys


def read_run(path: Path) -> SavedRun:
    """Read a saved run.

    Raises:
        BadData: It is no such file.
    """
    fix = "give a file that `ortune bench --json FILE.json` or `ortune loadtest` wrote"
    try:
        text = regular_file.read_text(path)
        content = codec.decode(_File, stored.parse_json(text), known_only=True)
    except ValueError as error:
        raise BadData(f"{path} is not JSON: {error}", fix=fix) from None
    except OrtuneError as error:
        raise BadData(f"{path} is not a saved run: {error.what}", fix=fix) from None
    rows = [
        replace(row, index=index, model=row.model.replace("\\", "/").rpartition("/")[2])
        for index, row in enumerate(content.rows)
        if not row.again
    ]
    if not rows:
        raise BadData(f"{path} holds no row", fix=fix)
    for row in rows:
        if not row.error and not row.sets:
            raise BadData(
                f"row {row.index} of {path} holds no usable times",
                fix="measure it again with `ortune bench --json FILE.json`",
            )
    return SavedRun(
        path, tuple(rows), content.machine, content.versions, content.judgement.too_noisy
    )


def match_rows(
    reference: SavedRun, other: SavedRun, by: Sequence[str]
) -> tuple[list[tuple[SavedRow, SavedRow]], list[SavedRow], list[SavedRow]]:
    """Pair the rows of two runs; return the pairs and what only the first and the second have.

    Rows of one file that share a key are paired in their order. With `by` empty all are.
    """
    mine = dict(zip(reference.list_keys(by), reference.rows, strict=True))
    theirs = dict(zip(other.list_keys(by), other.rows, strict=True))
    return (
        [(row, theirs[key]) for key, row in mine.items() if key in theirs],
        [row for key, row in mine.items() if key not in theirs],
        [row for key, row in theirs.items() if key not in mine],
    )


# --- ratios of two occasions --------------------------------------------------------------------


@dataclass(frozen=True)
class _Estimate:
    """A log-time or log-ratio of one run with the variance of its mean."""

    middle: float
    variance: float
    df: float

    @classmethod
    def from_pairs(cls, pairs: Sequence[Pair]) -> Self:
        middle, variance, df, n = stats.pair_spread(pairs)
        return cls(middle, variance / n, df)


def compare_directly(reference: SavedRow, other: SavedRow) -> Interval:
    """Return the second row's latency over the first's, measured on two occasions.

    Welch's interval (doi:10.1093/biomet/34.1-2.28) on the difference of mean log-latencies. A
    run's variance is the spread between its sets of processes, moderated like that of pairs
    (`ortune.measurement.timing.stats.latency_ratio`); to the sum is added what another occasion
    does, `stats.OCCASION_SD` squared, taken as known: separate runs are not paired, and more
    samples of the same occasion cannot remove it.
    """

    def of_ones(burst: Burst) -> Burst:
        """A baseline of 1 ns makes a log-ratio the logarithm of the latency itself."""
        count = len(burst.latency_ns)
        return replace(burst, latency_ns=(1,) * count, waited=(0.0,) * count)

    first, second = (
        _Estimate.from_pairs([Pair.of(map(of_ones, blocks), blocks) for blocks in row.sets])
        for row in (reference, other)
    )
    return _compute_interval(first, second)


def compare_relatively(
    reference: SavedRow, base: SavedRow, other: SavedRow, other_base: SavedRow
) -> Interval:
    """Return the ratio of two rows' ratios to the row that they were timed in turns with.

    Within a run the ratio is paired, so what slows both alike cancels; between the runs it is
    Welch's interval as in `compare_directly`.
    """
    first = _Estimate.from_pairs(list(map(Pair.of, base.sets, reference.sets)))
    return _compute_interval(
        first, _Estimate.from_pairs(list(map(Pair.of, other_base.sets, other.sets)))
    )


def _compute_interval(reference: _Estimate, other: _Estimate) -> Interval:
    variance = reference.variance + other.variance + stats.OCCASION_SD**2
    middle = other.middle - reference.middle
    if not math.isfinite(variance):
        return Interval(math.exp(middle), 0.0, math.inf)
    spent = reference.variance**2 / reference.df + other.variance**2 / other.df
    df = min(200, int(variance**2 / spent)) if spent else 200
    half = stats.student_quantile(stats.CONFIDENCE, max(stats.PRIOR_DF, df)) * math.sqrt(variance)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


# --- verdicts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunDifference:
    """A field of the machine or the versions that differs between two runs."""

    where: str
    field: str
    reference: str | None
    other: str | None


@dataclass(frozen=True)
class ComparedRow:
    """A row of the reference and the same one of another run."""

    name: str  # for a person; of the other row what differs
    model: str
    backend: str
    workload: str
    batch: int
    rows: tuple[int, int]  # index in each file
    same_model: bool | None  # by its digest; None when one is not known
    how: str  # whether latencies are compared directly, or relative to which row
    judged: bool  # whether the latency is
    error: tuple[str | None, str | None]
    latency: Interval | None  # ratio of the other to the reference; None when one failed
    p99: float | None  # ratio, like `memory`, `size` and `load`; None when one is not known
    memory: float | None
    size: float | None
    load: float | None
    regressions: tuple[str, ...]  # metrics over their thresholds, or ``error``
    verdict: str

    def ratio(self, metric: str) -> float | None:
        """Return a ratio by the metric's name."""
        value: float | None = getattr(self, metric)
        return value


@dataclass(frozen=True)
class ComparedRun:
    """A run against the reference."""

    reference: str
    other: str
    same_machine: bool
    too_noisy: tuple[str, ...]  # files that were measured on a machine too noisy for a verdict
    differs: tuple[RunDifference, ...]
    rows: tuple[ComparedRow, ...]
    only_reference: tuple[str, ...]  # rows that the other one lacks
    only_other: tuple[str, ...]  # rows that the reference lacks


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
    """

    headline = ("regressions", "thresholds")

    thresholds: Mapping[str, float]
    files: tuple[ComparedFile, ...]
    comparisons: tuple[ComparedRun, ...]
    regressions: int

    @property
    def rows(self) -> tuple[ComparedRow, ...]:
        """The rows of all comparisons."""
        return tuple(row for comparison in self.comparisons for row in comparison.rows)


def run(request: Compare) -> CompareResult:
    """Compare saved runs with the first of them, row by row.

    A latency regression is a ratio whose whole 99 % interval is over 1 + threshold: two short runs
    of one model on a shared machine read 1.397 [1.016, 1.920] apart. On the same machine latencies
    are compared directly. On another machine no time is judged, unless both runs hold the same
    first row: then a row's ratio to it is compared, which holds across machines. Nor is a time of
    a run whose machine was too noisy for a verdict.
    """
    limits, run_paths = {**THRESHOLDS, **request.thresholds}, make_paths(request.files)
    if len(run_paths) < 2:
        raise BadData(
            "only one file is given: there is nothing to compare it with",
            fix="give two files or more",
        )
    for name, limit in limits.items():
        if name not in METRICS:
            raise BadSettings(f"no metric '{name}'", fix=suggest_names(name, METRICS))
        if not 0 <= limit < math.inf:
            raise BadSettings(
                f"{limit} is not a threshold for {name}", fix="give a share such as 0.05 or 5%"
            )
    for name in request.by:
        if name not in FIELDS:
            raise BadSettings(f"rows have no '{name}'", fix=f"use some of: {', '.join(FIELDS)}")
    runs = [read_run(path) for path in run_paths]
    comparisons = [_compare_runs(runs[0], run, request, limits) for run in runs[1:]]
    files = [ComparedFile(run.path, len(run.rows), run.machine, run.versions) for run in runs]
    regressed = sum(bool(row.regressions) for comparison in comparisons for row in comparison.rows)
    return CompareResult(limits, tuple(files), tuple(comparisons), regressed)


def _compare_runs(
    reference_run: SavedRun, other_run: SavedRun, request: Compare, limits: Mapping[str, float]
) -> ComparedRun:
    pairs, only_one, only_two = match_rows(reference_run, other_run, request.by)
    if not pairs and len(reference_run.rows) == len(other_run.rows) == 1:
        # A model against what was made of it: there is nothing else to take for the same.
        pairs, only_one, only_two = match_rows(reference_run, other_run, ("workload", "batch"))
    if not pairs:
        raise BadData(
            f"no row of {other_run.path} is in {reference_run.path}: {other_run.rows[0]} is not "
            f"{reference_run.rows[0]}",
            fix="match rows by fewer fields, such as --by backend, or by position with --by order",
        )
    sides = {
        "machine": (reference_run.machine, other_run.machine),
        "versions": (reference_run.versions, other_run.versions),
    }
    differs = tuple(
        RunDifference(where, name, mine.get(name), other.get(name))
        for where, (mine, other) in sides.items()
        for name in dict.fromkeys([*mine, *other])
        if mine.get(name) != other.get(name)
    )
    same = not any(entry.where == "machine" for entry in differs)
    noisy = tuple(str(run.path) for run in (reference_run, other_run) if run.too_noisy)
    alike = same or request.across_machines
    rows = []
    for first, second in pairs:
        bases = None
        if request.relative or not alike:
            bases = _find_bases(reference_run, other_run, first, second)
        why_not = ""
        if noisy:
            why_not = "the machine was too noisy"
        elif bases is None and (request.relative or not alike):
            why_not = "no common first row to compare with" if alike else "another machine"
        rows.append(
            _compare_rows(first, second, bases, limits, why_not, times=alike and not noisy)
        )
    return ComparedRun(
        reference=str(reference_run.path),
        other=str(other_run.path),
        same_machine=same,
        too_noisy=noisy,
        differs=differs,
        rows=tuple(rows),
        only_reference=tuple(map(str, only_one)),
        only_other=tuple(map(str, only_two)),
    )


def _find_bases(
    reference_run: SavedRun, other_run: SavedRun, mine: SavedRow, other: SavedRow
) -> tuple[SavedRow, SavedRow] | None:
    """Return the first rows of both sides where they are the same contestant and not this one.

    Rows were timed in turns where they hold as many blocks, with as many entries if those matter.
    """
    base, other_base = reference_run.find_base(mine), other_run.find_base(other)
    shapes = [
        [[burst.alike or len(burst.latency_ns) for burst in blocks] for blocks in row.sets]
        for row in (mine, base, other, other_base)
    ]
    if (
        base is mine
        or other_base is other
        or base.error
        or other_base.error
        or base.digest is None
        or base.digest != other_base.digest
        or base.make_key(FIELDS[1:]) != other_base.make_key(FIELDS[1:])
        or shapes[0] != shapes[1]
        or shapes[2] != shapes[3]
    ):
        return None
    return base, other_base


def _compare_rows(
    reference: SavedRow,
    other: SavedRow,
    bases: tuple[SavedRow, SavedRow] | None,
    limits: Mapping[str, float],
    why_not: str,
    *,
    times: bool,
) -> ComparedRow:
    """Compare two rows; no latency is judged where `why_not` says why, no other time if `times`
    is false."""
    reference_figures, other_figures = reference.figures, other.figures
    both = reference_figures.keys() & other_figures.keys()
    ratios = {name: other_figures[name] / reference_figures[name] for name in both}
    grown = {name: ratios.get(name) for name in METRICS[1:]}
    regressions: tuple[str, ...] = ()
    latency = None
    if reference.error or other.error:
        verdict = "fails now" if other.error else "failed before"
        verdict = "failed in both" if reference.error and other.error else verdict
        regressions = ("error",) if other.error and not reference.error else ()
        grown = dict.fromkeys(grown)
    else:
        if bases is None:
            latency = compare_directly(reference, other)
        else:
            latency = compare_relatively(reference, bases[0], other, bases[1])
        slower = latency.low > 1 + limits["latency"]
        regressions = ("latency",) if slower and not why_not else ()
        regressions += tuple(
            name
            for name, ratio in grown.items()
            if ratio is not None
            and name in limits
            and (times or name not in _TIMES)
            and ratio > 1 + limits[name]
        )
        if regressions:
            verdict = f"regression: {', '.join(regressions)}"
        elif why_not:
            verdict = f"not judged: {why_not}"
        elif not latency.is_bounded:
            verdict = "not known: too few undisturbed runs for an interval"
        elif latency.value > 1 + limits["latency"]:
            verdict = "over the threshold, but within noise"
        elif latency.low > 1:
            verdict = "slower, within the threshold"
        else:
            verdict = "faster" if latency.high < 1 else "no difference"
    name = str(reference)
    if str(other) != name:
        same = reference.model == other.model
        name += f" -> {str(other).removeprefix(f'{reference.model} on ') if same else other}"
    return ComparedRow(
        name=name,
        model=reference.model,
        backend=reference.backend,
        workload=reference.workload,
        batch=reference.batch,
        rows=(reference.index, other.index),
        same_model=None
        if None in (reference.digest, other.digest)
        else reference.digest == other.digest,
        how="direct" if bases is None else f"relative to {bases[0]}",
        judged=not why_not,
        error=(reference.error, other.error),
        latency=latency,
        **grown,
        regressions=regressions,
        verdict=verdict,
    )
