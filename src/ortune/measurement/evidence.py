"""What samples say of a budget, by the kind of its metric: estimate, bound, proof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.metric import Kind, Metric
from ortune.measurement.statistics import betting, binomial, bootstrap, paired

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
_SLACK = 1e-9
"""Of a record beside its declared bounds: rounding."""


@dataclass(frozen=True)
class Evidence:
    """What a test found.

    Attributes:
        value: The candidate's score on all samples, and `base` the baseline's.
        bound: What the score is at least (where lower is better: at most), at the error; infinite
            on the bad side where nothing says so.
        proved: The budget is, on the samples that may prove.
        units: Independent samples that the bound rests on; None where it proves nothing.
        needed: Independent samples, not read before, that would prove it.
        inside: Share of all independent samples that keep the limit; None where none is asked.
        basis: In a few words.
    """

    value: float
    base: float
    bound: float
    proved: bool
    units: int | None
    needed: int | None
    inside: float | None
    basis: str


@dataclass(frozen=True)
class PairedRecords:
    """The records of two sides on the same samples.

    Attributes:
        candidate: Records [samples, k]; `baseline` likewise.
        units: Number of the group of each sample; samples of one group count as one.
        proof: Rows that may prove something.
        error: Of a proof, one-sided.
        seed: Of the order in which units are bet on, and of the bootstrap.
    """

    budget: Budget
    candidate: Floats
    baseline: Floats
    units: Rows
    proof: Rows
    error: float
    seed: int

    @cached_property
    def sign(self) -> float:
        """1 where higher is better, else -1."""
        return 1.0 if self.budget.metric.higher_is_better else -1.0

    @cached_property
    def goal(self) -> float:
        """What a score times `sign` is to be: of the difference, where the budget is relative."""
        return self.sign * self.budget.limit

    @cached_property
    def slack(self) -> float:
        """Rounding that is forgiven."""
        return _SLACK * max(1.0, abs(self.goal))

    @cached_property
    def scores(self) -> Floats:
        """First column of the candidate's records, less the baseline's if relative, times sign."""
        base = self.baseline[:, 0] if self.budget.relative else 0.0
        return np.asarray(self.sign * (self.candidate[:, 0] - base), np.float64)

    @property
    def noun(self) -> str:
        """What is counted."""
        return "sample" if len(np.unique(self.units)) == len(self.units) else "group"

    def describe_count(self, number: int) -> str:
        """Name what the proof was made on."""
        prefix = "held-out " if len(self.proof) < len(self.units) else ""
        return f"{number} {prefix}{self.noun}{'' if number == 1 else 's'}"


def number_groups(groups: Sequence[str] | None, count: int) -> Rows:
    """Return the number of each sample's group, from 0; its own number without groups."""
    if groups is None:
        return np.arange(count)
    return np.unique(np.asarray(groups, str), return_inverse=True)[1].reshape(-1)


def weigh_evidence(data: PairedRecords) -> Evidence:
    """Test by the kind of the metric.

    Raises:
        BadData: A record is outside the bounds that the metric declares.
    """
    metric = data.budget.metric
    kind = metric.kind(data.baseline)
    if kind is Kind.SHARE:
        return _test_share(data)
    value, base = (metric.aggregate(records) for records in (data.candidate, data.baseline))
    if math.isnan(value) or math.isnan(base):
        return Evidence(
            value, base, -data.sign * math.inf, False, None, None, None, "not a number"
        )
    if kind is Kind.FIGURE:
        return _bootstrap_figure(data, value, base, "a figure is not proved")
    single = len(np.unique(data.units[data.proof])) == len(data.proof)
    if kind is Kind.RIGHT and single and _is_binary(data.candidate) and _is_binary(data.baseline):
        return _test_right_answers(data, value, base)
    if metric.bounds is None:
        return _bootstrap_figure(data, value, base, "no bounds of a record are declared")
    return _test_mean(data, value, base, metric.bounds)


def _test_share(data: PairedRecords) -> Evidence:
    """Count the units inside, each being as good as its worst sample."""
    metric, share = data.budget.metric, data.budget.metric.kept_by
    candidate = data.sign * metric.each(data.candidate)
    base = data.sign * metric.each(data.baseline)
    margin = candidate - base if data.budget.relative else candidate
    worst = _worst_of_units(margin, data.units)
    proof = _worst_of_units(margin[data.proof], data.units[data.proof])
    proof[np.isnan(proof)] = -np.inf  # what is broken keeps nothing
    kept = _compute_kept_score(worst, share)
    worst_base = _compute_kept_score(_worst_of_units(base, data.units), share)
    value = worst_base + kept if data.budget.relative else kept
    inside = float(np.mean(worst >= data.goal - data.slack)) if len(worst) else math.nan
    may = binomial.find_allowed_outside(len(proof), share, data.error)
    bound = float(np.sort(proof)[may]) if may >= 0 else -math.inf
    outside = int((proof < data.goal - data.slack).sum())
    return Evidence(
        value=data.sign * value,
        base=data.sign * worst_base,
        bound=data.sign * (bound + worst_base if data.budget.relative else bound),
        proved=outside <= may,
        units=len(proof),
        needed=binomial.find_required_samples(inside, share, data.error),
        inside=inside,
        basis=f"{len(proof) - outside} of {data.describe_count(len(proof))} inside",
    )


def estimate_score(metric: Metric, records: Floats, units: Rows) -> float:
    """Return the score of one side alone over all samples."""
    if not metric.kept_by or metric.kind(records) is not Kind.SHARE:
        return metric.aggregate(records)
    sign = 1.0 if metric.higher_is_better else -1.0
    return sign * _compute_kept_score(
        _worst_of_units(sign * metric.each(records), units), metric.kept_by
    )


def _worst_of_units(margin: Floats, units: Rows) -> Floats:
    """Return the least of each unit that is there; NaN is the least of all numbers."""
    unique_units, place = np.unique(units, return_inverse=True)
    worst = np.full(len(unique_units), np.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(worst, place, margin)
    return worst


def _compute_kept_score(scores: Floats, share: float) -> float:
    """Return the score that `share` of the units keep; NaN if any is."""
    if not len(scores) or np.isnan(scores).any():
        return math.nan
    best = math.ceil(share * len(scores) - _SLACK)
    return float(np.sort(scores)[len(scores) - max(best, 1)])


def _test_right_answers(data: PairedRecords, value: float, base: float) -> Evidence:
    """Test right and wrong answers of independent samples exactly."""
    scores, n = data.scores[data.proof], len(data.proof)
    total = len(data.scores)
    if data.budget.relative:
        delta, lost, won = -data.goal, int((scores < 0).sum()), int((scores > 0).sum())
        proved = paired.p_value(n, lost, won, delta, data.error) <= data.error
        bound = base - paired.estimate_loss_bound(n, lost, won, data.error)
        limit = base - delta
        bound = max(bound, limit) if proved else min(bound, math.nextafter(limit, -math.inf))
        basis = f"{lost} lost, {won} won of {data.describe_count(n)}, exact"
        losses, wins = int((data.scores < 0).sum()), int((data.scores > 0).sum())
        needed = paired.estimate_required_samples(losses / total, wins / total, delta, data.error)
    else:
        right = int(scores.sum())
        bound = binomial.compute_clopper_pearson(right, n, data.error)
        proved = bound >= data.goal - data.slack
        basis = f"{right} right of {data.describe_count(n)}, exact"
        needed = binomial.find_required_samples(value, data.goal, data.error)
    return Evidence(value, base, bound, proved, n, needed, None, basis)


def _test_mean(
    data: PairedRecords, value: float, base: float, bounds: tuple[float, float]
) -> Evidence:
    """Bet that the mean is above the limit, unit by unit."""
    low, high = bounds
    for records in (data.candidate, data.baseline):
        check_bounds(data.budget.metric, records)
    least = low - high if data.budget.relative else min(data.sign * low, data.sign * high)
    sums, sizes = _sum_units(data.scores[data.proof], data.units[data.proof])
    # Whole units are shuffled: of shuffled samples the largest groups would come up first.
    order = np.random.default_rng(data.seed).permutation(len(sums))
    sums, sizes = sums[order], sizes[order]
    all_units = _sum_units(data.scores, data.units)
    goal, error = data.goal, data.error
    lower_bound = betting.lower_bound(sums, sizes, least, error)
    return Evidence(
        value,
        base,
        data.sign * lower_bound + (base if data.budget.relative else 0.0),
        betting.is_mean_above(sums, sizes, goal, least, error),
        len(sums),
        betting.estimate_required_units(*all_units, goal, least, error),
        None,
        f"sequential test on {data.describe_count(len(sums))}",
    )


def _sum_units(scores: Floats, units: Rows) -> tuple[Floats, Floats]:
    """Return the sum and the size of each unit that is there."""
    place = np.unique(units, return_inverse=True)[1]
    sums, sizes = np.bincount(place, scores), np.bincount(place)
    return sums.astype(np.float64), sizes.astype(np.float64)


def check_bounds(metric: Metric, records: Floats) -> None:
    """Refuse records [samples, k] outside the bounds that a metric declares.

    Raises:
        BadData: One is.
    """
    if metric.bounds is None:
        return
    low, high = metric.bounds
    first, slack = records[:, 0], _SLACK * max(1.0, abs(low), abs(high))
    wrong = first[(first < low - slack) | (first > high + slack)]
    if len(wrong):
        raise BadData(
            f"{metric} gave {wrong[0]:g}, outside its bounds {low:g} and {high:g}",
            fix="declare bounds that every record keeps, or none",
        )


def _bootstrap_figure(data: PairedRecords, value: float, base: float, why: str) -> Evidence:
    """Draw units anew; at best that makes something likely."""
    metric, relative = data.budget.metric, data.budget.relative

    def score_draw(rows: Rows) -> float:
        score = metric.aggregate(data.candidate[rows])
        return score + base - metric.aggregate(data.baseline[rows]) if relative else score

    def mean(rows: Rows) -> float:
        return data.sign * float(data.scores[rows].mean()) + (base if relative else 0.0)

    order = np.argsort(data.units, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(data.units[order])) + 1)
    statistic = mean if metric.kind(data.baseline) is not Kind.FIGURE else score_draw
    low, high = bootstrap.compute_interval(statistic, members, data.error, data.seed)
    bound = low if data.sign > 0 else high
    noun = data.noun if len(members) == 1 else f"{data.noun}s"
    basis = f"bootstrap over {len(members)} {noun}; {why}"
    return Evidence(value, base, bound, False, None, None, None, basis)


def _is_binary(records: Floats) -> bool:
    return bool(np.isin(records[:, 0], (0.0, 1.0)).all())
