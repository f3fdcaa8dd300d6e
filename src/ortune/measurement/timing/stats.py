"""Statistics over raw samples: pure functions, computed late.

A *block* is one A B B A turn; its log-ratio is that of the sides' medians where all entries are
alike, else the median over entries of log(candidate / baseline): entry i ran the same sample on
both sides. A *pair* is two live processes. Blocks of one pair share the processes' memory layout,
so a pair has an effect of its own that no number of blocks averages out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from ortune.core.trial import Block, Burst, Interval, Pair

CONFIDENCE = 0.99
SEARCHING = 0.9  # confidence of what a search only sorts by: one pair alone proves little
PAIR_SD = 0.0056
"""Prior standard deviation of a pair's own effect on the log-ratio, and how many degrees of
freedom it is worth: fitted to all machines measured, ``benchmarks/results/noise_prior.json``."""
PRIOR_DF = 1.0
PAIRS = 5  # fresh pairs of processes behind a claim
FEWEST_PAIRS = 2
_LOOK_ERRORS = {2: 0.0005, 3: 0.001, 4: 0.001}
"""Error of an interval at which timing may end before `PAIRS`; the last has the rest of 1 %."""
OCCASION_SD = 0.014
"""Standard deviation of what another occasion, perhaps beside a neighbour, does to a log-ratio: at
most, by all recorded repeats together, ``benchmarks/results/noise_prior.json``."""
LOUDER = 1.5
"""Times the variance of a run's other pairs above which pairs are not taken as equally noisy."""
PREDICTED = 0.95
WAITED = 0.02
"""Entries whose threads waited longer than this share for a CPU are dropped, unless others used
less than so many CPUs meanwhile: then its own threads waited for each other."""
_ENOUGH = 12
_BLOCKS = 4
_MOST_WAITING = 0.98

_UNKNOWN = (math.nan, math.nan, PRIOR_DF, 1)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PooledVariance:
    """What other pairs of a run tell about how far its pairs differ.

    Attributes:
        squares: Sum of squares of their log-ratios, each group's about its own mean.
    """

    squares: float = 0.0
    df: int = 0

    @classmethod
    def pool(
        cls,
        groups: Iterable[Sequence[Pair]],
        equal: Sequence[Pair] = (),
        *,
        one_baseline: bool = False,
    ) -> PooledVariance:
        """Pool the squares of groups of pairs.

        Args:
            groups: Pairs of one plan each; of a lone pair the mean is not known.
            equal: A/A pairs: the mean is known to be 0, so each counts.
            one_baseline: All were timed against the same baseline's processes. Half of what their
                pairs differ by is then common to all: k groups of n pairs tell as much as
                4 k / (k + 3) groups that have a baseline of their own.
        """
        kept = [means for group in groups if len(means := _pair_means(group)) > 1]
        squares = sum(float(np.square(means - means.mean()).sum()) for means in kept)
        df = sum(len(means) - 1 for means in kept)
        if len(same := _pair_means(equal)):
            squares, df = squares + float(np.square(same).sum()), df + len(same)
            kept.append(same)
        counted = df if not one_baseline else int(df * 4 / (len(kept) + 3))
        return cls(squares * counted / df, counted) if df else cls()

    def __add__(self, other: PooledVariance) -> PooledVariance:
        """Return what both tell together."""
        return PooledVariance(self.squares + other.squares, self.df + other.df)


NOTHING = PooledVariance()


def mask_undisturbed(block: Block) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which entries of baseline and candidate did not wait for a CPU.

    Entries that are not alike are compared one by one, as many as both sides have: a disturbed
    one takes its fellow along.
    """
    baseline, candidate = (
        np.asarray(b.waited) <= WAITED for b in (block.baseline, block.candidate)
    )
    if _is_alike(block):
        return baseline, candidate
    both = baseline[: len(candidate)] & candidate[: len(baseline)]
    return both, both


def block_logs(pair: Pair) -> Floats:
    """Return the log-ratio of every block that counts; none where too few runs were undisturbed.

    Only undisturbed entries count: of each side a dozen in four blocks or in all there are, or
    half of what was timed, in half of the blocks. A run as long as the scheduler's slice waits
    where a shorter one fits into it, so that a ratio of runs that waited is one of slices,
    however many there are. Where no other process ran, threads waited for each other: that is how
    the model runs, and all entries count.
    """
    masks = [mask_undisturbed(block) for block in pair.blocks]
    if _has_no_neighbour(pair):
        masks = [(np.ones_like(base), np.ones_like(other)) for base, other in masks]
    counts = [sum(int(mask[side].sum()) for mask in masks) for side in (0, 1)]
    totals = [sum(len(mask[side]) for mask in masks) for side in (0, 1)]
    across = sum(baseline.any() and candidate.any() for baseline, candidate in masks)
    dozen = min(counts) >= _ENOUGH and across >= min(_BLOCKS, len(masks))
    most = all(2 * count >= total for count, total in zip(counts, totals, strict=True))
    if not dozen and not (most and 2 * across >= len(masks)):
        return np.empty(0)
    logs = []
    for block, kept in zip(pair.blocks, masks, strict=True):
        if kept[0].any() and kept[1].any():
            sides = zip((block.baseline, block.candidate), kept, strict=True)
            bottom, top = (_log_latencies(side, len(mask))[mask] for side, mask in sides)
            middles = np.median(top) - np.median(bottom) if _is_alike(block) else None
            logs.append(float(np.median(top - bottom) if middles is None else middles))
    return np.array(logs)


def _has_no_neighbour(pair: Pair) -> bool:
    """Say whether other processes used too little of the CPUs to make a run wait."""
    bursts = [side for block in pair.blocks for side in (block.baseline, block.candidate)]
    used = [burst.neighbours for burst in bursts if burst.neighbours is not None]
    if not used or len(used) < len(bursts):
        return False
    seconds = [max(1, sum(burst.latency_ns) * burst.runs_each) for burst in bursts]
    return float(np.average(used, weights=seconds)) <= WAITED


def rough_log(pair: Pair) -> float:
    """Return the log-ratio of all entries less what each waited; NaN without any.

    Where no interval can be had, a search sorts by it. It is no claim: threads wait one beside
    the other, and what a neighbour left in the cache is in it.
    """
    logs = [float(np.median(runs)) for block in pair.blocks if len(runs := _rough_logs(block))]
    return compute_trimmed_mean(np.array(logs)) if logs else math.nan


def rough_entry_logs(pair: Pair) -> Floats:
    """Return the log-ratio of each of the candidate's entries, all less what they waited.

    As `rough_log`: beside the baseline's median, or entry by entry where they are not alike.
    """
    return np.concatenate([np.empty(0), *map(_rough_logs, pair.blocks)])


def _rough_logs(block: Block) -> Floats:
    ran = []  # logarithms of latencies less what was waited, of as many entries as are compared
    for side, mask in zip((block.baseline, block.candidate), mask_undisturbed(block), strict=True):
        waited = np.clip(np.asarray(side.waited[: len(mask)], np.float64), 0.0, _MOST_WAITING)
        ran.append(_log_latencies(side, len(mask)) + np.log1p(-waited))
    bottom, top = ran
    if not len(bottom) or not len(top):
        return np.empty(0)
    return top - (np.median(bottom) if _is_alike(block) else bottom)


def _is_alike(block: Block) -> bool:
    return block.baseline.alike and block.candidate.alike


def _log_latencies(burst: Burst, count: int) -> Floats:
    """Return the logarithms of a burst's first entries."""
    return np.log(np.maximum(np.asarray(burst.latency_ns[:count], np.float64), 1.0))


def compute_trimmed_mean(logs: Floats) -> float:
    """Return the 20 % trimmed mean: robust against single disturbed blocks."""
    cut = int(0.2 * len(logs))
    return float(np.sort(logs)[cut : len(logs) - cut].mean())


def bootstrap_error(logs: Floats) -> float:
    """Return the bootstrap standard error of `compute_trimmed_mean` over blocks.

    With Hesterberg's sqrt(n / (n - 1)) for its narrowness (doi:10.1080/00031305.2015.1089789).
    """
    return _bootstrap_cached(tuple(logs.tolist())) if len(logs) > 1 else math.inf


@lru_cache(4096)
def _bootstrap_cached(values: tuple[float, ...]) -> float:
    """Kept, as a run judges the same pairs again with every finalist."""
    logs, n = np.array(values), len(values)
    rng = np.random.default_rng(0)
    rows = np.sort(logs[rng.integers(0, n, (2000, n))], axis=1)
    cut = int(0.2 * n)
    return float(rows[:, cut : n - cut].mean(axis=1).std()) * math.sqrt(n / (n - 1))


def latency_ratio(
    pairs: Sequence[Pair], confidence: float = CONFIDENCE, learnt: PooledVariance = NOTHING
) -> Interval:
    """Return candidate over baseline latency with its interval.

    Every pair gives one estimate with a bootstrap error from its blocks; see `pair_spread` for
    their variance. Student's t over the pairs. Other groups of the run, without these, were
    learnt from.
    """
    middle, variance, df, n = pair_spread(pairs, learnt)
    return _make_interval(middle, student_quantile(confidence, df) * math.sqrt(variance / n))


def claim_ratio(pairs: Sequence[Pair], learnt: PooledVariance = NOTHING) -> Interval:
    """Return a finalist's ratio with an interval that holds although its timing may end early.

    Its pairs are looked at after each from `FEWEST_PAIRS` on. Every look has a share of the
    error, so that in 1 % of finals at most any of them misses (Boole's inequality), whenever
    it ended.
    """
    whole = 1 - CONFIDENCE
    last = whole - sum(_LOOK_ERRORS.values())
    error = _LOOK_ERRORS.get(max(len(pairs), FEWEST_PAIRS), last)
    return latency_ratio(pairs, 1 - error, learnt)


def predict_ratio(pairs: Sequence[Pair], learnt: PooledVariance = NOTHING) -> Interval:
    """Return where one new measurement of the ratio will fall.

    New is: one fresh pair of processes timed as long as one of these, on another occasion, perhaps
    beside a neighbour. Student's prediction interval for one future observation (Hahn and Meeker,
    Statistical Intervals, 2017, section 4.8) on the log-ratio, the occasion's own variance added:
    middle +- t sqrt(s^2 (1 + 1/n) + occasion^2).
    """
    middle, variance, df, n = pair_spread(pairs, learnt)
    wide = math.sqrt(variance * (1 + 1 / n) + OCCASION_SD**2)
    return _make_interval(middle, student_quantile(PREDICTED, df) * wide)


def pair_spread(
    pairs: Sequence[Pair], learnt: PooledVariance = NOTHING
) -> tuple[float, float, float, int]:
    """Return mean log-ratio, variance of one pair's, degrees of freedom, and how many pairs.

    The spread between pairs is pooled with that of the run's other groups and moderated towards
    the prior `PAIR_SD` with `PRIOR_DF` degrees of freedom (Smyth 2004,
    doi:10.2202/1544-6115.1027), so that one pair is honest and a noisy model is known as such by
    all its pairs. A pair's variance holds its effect and its error from blocks. A lone block has
    no error of its own: of several pairs their spread tells it, of one pair nothing.

    Where too few runs of all pairs were undisturbed, the mean is a rough one and the variance
    infinite: there is no interval.

    Plans of a run need not be equally noisy. Where the pairs at hand differ by over `LOUDER` times
    what the others' do, they are also taken alone, and what makes the wider interval counts.
    """
    logs = [values for pair in pairs if len(values := block_logs(pair))]
    if not logs:
        rough = [value for pair in pairs if not math.isnan(value := rough_log(pair))]
        return (float(np.mean(rough)), math.inf, PRIOR_DF, 1) if rough else _UNKNOWN
    means = np.array([compute_trimmed_mean(block_values) for block_values in logs])
    n = len(means)
    seen = float(means.var(ddof=1)) if n > 1 else 0.0
    errors = [bootstrap_error(block_values) ** 2 for block_values in logs if len(block_values) > 1]
    within = float(np.mean(errors)) if errors else seen if n > 1 else math.inf
    squares, alone = PRIOR_DF * (PAIR_SD**2 + within) + (n - 1) * seen, PRIOR_DF + n - 1
    pooled = (squares + learnt.squares) / (alone + learnt.df), alone + learnt.df
    if learnt.df and seen > LOUDER * learnt.squares / learnt.df:
        pooled = max(
            (pooled, (squares / alone, alone)),
            key=lambda estimate: (
                student_quantile(CONFIDENCE, estimate[1]) * math.sqrt(estimate[0])
            ),
        )
    variance, df = pooled
    return float(means.mean()), variance, df, n


def half_width(learnt: PooledVariance, pairs: int = PAIRS) -> float:
    """Return a claim's half-width, in the log-ratio, from so many pairs, by all of the run."""
    df = PRIOR_DF + learnt.df + pairs - 1
    return student_quantile(CONFIDENCE, df) * math.sqrt(_pair_variance(learnt) / pairs)


def minimum_detectable_effect(
    learnt: PooledVariance, pairs: int = PAIRS, power: float = 0.9
) -> float:
    """Return the difference, a share of 1, that so many pairs find that often.

    The interval's half-width and the estimate's own error must fit into it together. `learnt` is
    from all groups of the run.
    """
    estimate_error = student_quantile(2 * power - 1, 1000) * math.sqrt(
        _pair_variance(learnt) / pairs
    )
    return math.expm1(half_width(learnt, pairs) + estimate_error)


def pairs_for(learnt: PooledVariance, difference: float = 0.03) -> int | None:
    """Return how many pairs find a difference in nine of ten runs; None where 100 do not."""
    return next(
        (n for n in range(2, 101) if minimum_detectable_effect(learnt, n) <= difference), None
    )


def _pair_variance(learnt: PooledVariance) -> float:
    return (PRIOR_DF * PAIR_SD**2 + learnt.squares) / (PRIOR_DF + learnt.df)


def _pair_means(pairs: Sequence[Pair]) -> Floats:
    """Return the log-ratio of every pair that has one."""
    logs = (block_values for pair in pairs if len(block_values := block_logs(pair)))
    return np.array([compute_trimmed_mean(values) for values in logs])


def _make_interval(middle: float, half: float) -> Interval:
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


@cache
def student_quantile(confidence: float, df: float) -> float:
    """Return the two-sided quantile of Student's t.

    The angle whose tangent is t / sqrt(df) has a density proportional to cos^(df - 1), which is
    summed on a grid that narrows towards the right angle, where the tail is.

    Args:
        df: Degrees of freedom, 1 at least; not only whole ones.
    """
    edges = 1 - np.linspace(1, 0, 20_001)
    middle = (edges[1:] + edges[:-1]) / 2
    angles = np.pi / 2 * (1 - middle) ** 2
    within = np.concatenate([[0.0], np.cumsum(np.sin(angles) ** (df - 1) * (1 - middle))])
    place = float(np.interp(confidence, within / within[-1], edges))
    return math.sqrt(df) / math.tan(math.pi / 2 * (1 - place) ** 2)


def count_unusable(pairs: Sequence[Pair]) -> int:
    """Return how many pairs say nothing: too few of their runs did not wait for a CPU."""
    return sum(bool(pair.blocks) and not len(block_logs(pair)) for pair in pairs)


def compute_disturbed_share(pairs: Sequence[Pair]) -> float:
    """Return the share of entries that a busy neighbour disturbed; NaN when it cannot be read."""
    bursts = (side for p in pairs for b in p.blocks for side in (b.baseline, b.candidate))
    waits = [w for side in bursts for w in side.waited if w >= 0]
    return sum(w > WAITED for w in waits) / len(waits) if waits else float("nan")
