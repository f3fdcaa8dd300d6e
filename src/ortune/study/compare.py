"""The public verb: saved runs against each other, for readers and continuous integration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortune.core.errors import BadData, BadSettings
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.measurement import stats
from ortune.study.saved import FIELDS, Saved, SavedRow, differences, match, read

METRICS = ("latency", "p99", "memory", "size", "load")
"""What a threshold may be set for; all but latency are compared as they stand."""
THRESHOLDS = {"latency": 0.05}


@dataclass(frozen=True)
class _Estimate:
    """A log-time or log-ratio of one run with the variance of its mean."""

    middle: float
    variance: float
    df: int


def compare(
    files: Sequence[str | Path],
    *,
    thresholds: Mapping[str, float] | None = None,
    by: Sequence[str] = FIELDS,
    across_machines: bool = False,
    relative: bool = False,
) -> dict[str, Any]:
    """Compare saved runs of `bench` or `loadtest` with the first of them, row by row.

    A latency regression is an estimate over 1 + threshold whose 99 % interval excludes 1. On the
    same machine latencies are compared directly. On another machine nothing is judged, unless
    both runs hold the same first row: then a row's ratio to it is compared, which holds across
    machines.

    Args:
        files: Two or more; the first is the reference.
        thresholds: Metric -> share by which it may grow; latency 0.05 when not given. Other
            metrics are judged only if given.
        by: Fields by which rows are matched; with none, by their order.
        across_machines: Judge latencies of different machines directly.
        relative: Judge ratios to the first row on the same machine too.

    Returns:
        ``thresholds``, ``files``, ``comparisons`` (one for every file after the first) and
        ``regressions``: how many rows regressed.

    Raises:
        OrtuneError: A file cannot be read, an option is wrong, or no row matches.
    """
    limits = {**THRESHOLDS, **(thresholds or {})}
    _check(limits, by, files)
    runs = [read(Path(path)) for path in files]
    found = [_comparison(runs[0], run, limits, by, across_machines, relative) for run in runs[1:]]
    return {
        "thresholds": limits,
        "files": [
            {
                "path": str(run.path),
                "rows": len(run.rows),
                "machine": dict(run.machine),
                "versions": dict(run.versions),
            }
            for run in runs
        ],
        "comparisons": found,
        "regressions": sum(bool(row["regressions"]) for one in found for row in one["rows"]),
    }


def direct(one: SavedRow, two: SavedRow) -> Interval:
    """Return the second row's latency over the first's, measured on two occasions.

    Welch's interval (doi:10.1093/biomet/34.1-2.28) on the difference of mean log-latencies. A
    run's variance is the spread between its sets of processes, moderated like that of pairs
    (`ortune.measurement.stats.ratio`); to both is added what another occasion does,
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
    spent = one.variance**2 / one.df + two.variance**2 / two.df
    df = min(200, int(variance**2 / spent)) if spent else 200
    half = stats.student(stats.CONFIDENCE, max(stats.PRIOR_DF, df)) * math.sqrt(variance)
    middle = two.middle - one.middle
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _alone(row: SavedRow) -> _Estimate:
    one = [Pair(tuple(Block(_ones(burst), burst) for burst in blocks)) for blocks in row.sets]
    return _estimate(one)


def _paired(row: SavedRow, base: SavedRow) -> _Estimate:
    sets = zip(base.sets, row.sets, strict=True)
    return _estimate(
        [Pair(tuple(Block(a, b) for a, b in zip(x, y, strict=True))) for x, y in sets]
    )


def _ones(burst: Burst) -> Burst:
    """A baseline of 1 ns makes a log-ratio the logarithm of the latency itself."""
    return Burst((1,) * len(burst.latency_ns), (0.0,) * len(burst.waited))


def _estimate(pairs: Sequence[Pair]) -> _Estimate:
    """As `stats.ratio`, with blocks of a single set standing in where there is no second."""
    logs = [found for pair in pairs if len(found := stats.block_logs(pair))]
    means = np.array([stats.centre(one) for one in logs])
    errors = [stats.bootstrap(one) ** 2 for one in logs if len(one) > 1]
    within = float(np.mean(errors)) if errors else 0.0
    n = len(means)
    seen = float(means.var(ddof=1)) if n > 1 else 0.0
    df = stats.PRIOR_DF + n - 1
    variance = (stats.PRIOR_DF * (stats.PAIR_SD**2 + within) + (n - 1) * seen) / df
    return _Estimate(float(means.mean()), variance / n, df)


def _check(limits: Mapping[str, float], by: Sequence[str], files: Sequence[str | Path]) -> None:
    if len(files) < 2:
        raise BadData("one run has nothing to be compared with", fix="give two files or more")
    for name, limit in limits.items():
        if name not in METRICS:
            raise BadSettings(f"no metric '{name}'", fix=f"use one of: {', '.join(METRICS)}")
        if not 0 <= limit < math.inf:
            raise BadSettings(
                f"{limit} is no threshold for {name}", fix="give a share such as 0.05 or 5%"
            )
    for name in by:
        if name not in FIELDS:
            raise BadSettings(f"rows have no '{name}'", fix=f"use some of: {', '.join(FIELDS)}")


def _comparison(
    one: Saved,
    two: Saved,
    limits: Mapping[str, float],
    by: Sequence[str],
    across_machines: bool,
    relative: bool,
) -> dict[str, Any]:
    pairs, only_one, only_two = match(one, two, by)
    if not pairs:
        raise BadData(
            f"no row of {two.path} is in {one.path}: {two.rows[0]} is not {one.rows[0]}",
            fix="match by less, such as --by backend, or by order with --by order",
        )
    differs = differences(one, two)
    same = not any(entry["where"] == "machine" for entry in differs)
    rows = []
    for mine, other in pairs:
        bases = _common(one, two, mine, other)
        related_ones = bases if (relative or not same) and not across_machines else None
        judged = same or across_machines or related_ones is not None
        if relative and related_ones is None and not across_machines:
            judged = False
        rows.append(_row(mine, other, related_ones, judged, limits))
    return {
        "reference": str(one.path),
        "other": str(two.path),
        "same_machine": same,
        "too_noisy": [str(run.path) for run in (one, two) if run.too_noisy],
        "differs": differs,
        "rows": rows,
        "only_reference": [str(row) for row in only_one],
        "only_other": [str(row) for row in only_two],
    }


def _common(
    one: Saved, two: Saved, mine: SavedRow, other: SavedRow
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
    """Whether rows were timed in turns: as many blocks with as many entries."""
    shapes = [
        [[len(burst.latency_ns) for burst in blocks] for blocks in row.sets]
        for pair in pairs
        for row in pair
    ]
    return all(shapes[k] == shapes[k + 1] for k in range(0, len(shapes), 2))


def _row(
    one: SavedRow,
    two: SavedRow,
    bases: tuple[SavedRow, SavedRow] | None,
    judged: bool,
    limits: Mapping[str, float],
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": _name(one, two),
        "model": one.model,
        "backend": one.backend,
        "workload": one.workload,
        "batch": one.batch,
        "rows": [one.index, two.index],
        "same_model": None if None in (one.digest, two.digest) else one.digest == two.digest,
        "how": "direct" if bases is None else f"relative to {bases[0]}",
        "judged": judged,
        "error": [one.error, two.error],
        "latency": None,
        **dict.fromkeys(METRICS[1:]),
        "regressions": [],
        "verdict": "",
    }
    if one.error or two.error:
        found["verdict"] = _broken(one, two)
        found["regressions"] = ["error"] if two.error and not one.error else []
        return found
    latency = direct(one, two) if bases is None else related(one, bases[0], two, bases[1])
    found["latency"] = {"value": latency.value, "low": latency.low, "high": latency.high}
    for name in METRICS[1:]:
        if name in one.figures and name in two.figures:
            found[name] = two.figures[name] / one.figures[name]
    if judged and latency.value > 1 + limits["latency"] and latency.low > 1:
        found["regressions"].append("latency")
    found["regressions"] += [
        name
        for name in METRICS[1:]
        if name in limits and found[name] is not None and found[name] > 1 + limits[name]
    ]
    found["verdict"] = _verdict(latency, judged, limits["latency"], found["regressions"])
    return found


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


def _verdict(latency: Interval, judged: bool, limit: float, regressions: Sequence[str]) -> str:
    if regressions:
        return f"regression: {', '.join(regressions)}"
    if not judged:
        return "not judged: another machine"
    if latency.low > 1:
        return "slower, within the threshold"
    if latency.high < 1:
        return "faster"
    return "over the threshold, inside the noise" if latency.value > 1 + limit else "no difference"
