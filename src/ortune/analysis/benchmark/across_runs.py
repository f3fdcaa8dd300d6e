"""Latencies of two occasions against each other: runs that were not timed in turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortune.analysis.benchmark.results_file import SavedRow
from ortune.core.trial import Burst, Interval, Pair
from ortune.measurement.timing import stats


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
