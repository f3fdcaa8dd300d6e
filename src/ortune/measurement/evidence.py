"""What samples say of a budget, by the kind of its metric: estimate, bound, proof."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.metric import Kind, Metric
from ortune.core.trial import ScoreChange
from ortune.measurement.statistics import betting, binomial, bootstrap, paired

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
_SLACK = 1e-9  # of a record beside its declared bounds: rounding
_END = 0.05  # error of each end of the interval that is shown
_FEWEST = 2  # units that a bootstrap can draw from
_FIGURE_SHARE = 0.05
"""Samples that may fail under a figure whose limit says no share: as many as under `share`."""


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
        chance: Of so good a result on the samples that count, at most, were the plan just outside
            the budget.
        change: What the budget limits, on all samples, with 90 %: the share inside, or the score,
            in relative budgets its change.
    """

    value: float
    base: float
    bound: float
    proved: bool
    units: int | None
    needed: int | None
    inside: float | None
    basis: str
    chance: float = 1.0
    change: ScoreChange | None = None


@dataclass(frozen=True)
class PairedRecords:
    """The records of two sides on the same samples.

    Attributes:
        candidate: Records [samples, k]; `baseline` likewise.
        units: Number of the group of each sample; samples of one group count as one.
        proof: Rows that may prove something.
        error: Of a proof, one-sided.
        seed: Of the order in which units are bet on, and of the bootstrap.
        counted: Rows that may make it likely.
    """

    budget: Budget
    candidate: Floats
    baseline: Floats
    units: Rows
    proof: Rows
    error: float
    seed: int
    counted: Rows

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
    binary = (np.isin(side[:, 0], (0.0, 1.0)).all() for side in (data.candidate, data.baseline))
    if kind is Kind.RIGHT and single and all(binary):
        return _test_right_answers(data, value, base)
    if metric.bounds is None:
        return _bootstrap_figure(data, value, base, "no bounds of a record are declared")
    return _test_mean(data, value, base, metric.bounds)


def _read_allowance(budget: Budget) -> float:
    """Return the share of samples that may fail altogether, as far as a budget says one."""
    metric, limit = budget.metric, abs(budget.limit)
    if budget.relative:
        return min(limit, 1.0)
    return 1 - limit if metric.bounds == (0, 1) and limit < 1 else _FIGURE_SHARE


def _list_margins(data: PairedRecords, rows: Rows) -> Floats:
    """Return by how much units keep the limit's side, each being as good as its worst sample."""
    metric = data.budget.metric
    margin = data.sign * metric.each(data.candidate)
    if data.budget.relative:
        margin = margin - data.sign * metric.each(data.baseline)
    return _worst_of_units(margin[rows], data.units[rows])


def _count_outside(margins: Floats, data: PairedRecords) -> int:
    """Count units outside: what is broken keeps nothing."""
    return int((~(margins >= data.goal - data.slack)).sum())


def _test_share(data: PairedRecords) -> Evidence:
    """Count the units inside, each being as good as its worst sample."""
    metric, share = data.budget.metric, data.budget.metric.kept_by
    base = data.sign * metric.each(data.baseline)
    worst = _list_margins(data, np.arange(len(data.units)))
    proof, counted = _list_margins(data, data.proof), _list_margins(data, data.counted)
    proof[np.isnan(proof)] = -np.inf  # what is broken keeps nothing
    kept = _compute_kept_score(worst, share)
    worst_base = _compute_kept_score(_worst_of_units(base, data.units), share)
    value = worst_base + kept if data.budget.relative else kept
    inside = float(np.mean(worst >= data.goal - data.slack)) if len(worst) else math.nan
    may = binomial.find_allowed_outside(len(proof), share, data.error)
    bound = float(np.sort(proof)[may]) if may >= 0 else -math.inf
    outside = _count_outside(proof, data)
    return Evidence(
        value=data.sign * value,
        base=data.sign * worst_base,
        bound=data.sign * (bound + worst_base if data.budget.relative else bound),
        proved=outside <= may,
        units=len(proof),
        needed=binomial.find_required_samples(inside, share, data.error),
        inside=inside,
        basis=f"{len(proof) - outside} of {data.describe_count(len(proof))} inside",
        chance=binomial.cdf(_count_outside(counted, data), len(counted), 1 - share),
        change=_find_share(len(worst) - _count_outside(worst, data), len(worst)),
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
    n, total = len(data.proof), len(data.scores)
    if data.budget.relative:
        delta, (lost, won) = -data.goal, _count_changes(data.scores[data.proof])
        proved = paired.p_value(n, lost, won, delta, data.error) <= data.error
        bound = base - paired.estimate_loss_bound(n, lost, won, data.error)
        limit = base - delta
        bound = max(bound, limit) if proved else min(bound, math.nextafter(limit, -math.inf))
        basis = f"{lost} lost, {won} won of {data.describe_count(n)}, exact"
        losses, wins = _count_changes(data.scores)
        needed = paired.estimate_required_samples(losses / total, wins / total, delta, data.error)
        changes = _count_changes(data.scores[data.counted])
        chance = paired.p_value(len(data.counted), *changes, delta, data.error)
        low = -paired.estimate_loss_bound(total, losses, wins, _END)
        high = paired.estimate_loss_bound(total, wins, losses, _END)
        change = ScoreChange(value - base, min(low, value - base), max(high, value - base))
    else:
        right = int(data.scores[data.proof].sum())
        bound = binomial.compute_clopper_pearson(right, n, data.error)
        proved = bound >= data.goal - data.slack
        basis = f"{right} right of {data.describe_count(n)}, exact"
        needed = binomial.find_required_samples(value, data.goal, data.error)
        wrong = len(data.counted) - int(data.scores[data.counted].sum())
        chance = binomial.cdf(wrong, len(data.counted), 1 - data.goal)
        change = _find_share(int(data.scores.sum()), total)
    return Evidence(value, base, bound, proved, n, needed, None, basis, chance, change)


def _count_changes(scores: Floats) -> tuple[int, int]:
    """Return how many answers were lost, and how many won."""
    return int((scores < 0).sum()), int((scores > 0).sum())


def _find_share(count: int, total: int) -> ScoreChange:
    """Return the share of samples with its interval by Clopper and Pearson."""
    if not total:
        return ScoreChange(math.nan, 0.0, 1.0)
    ends = [binomial.compute_clopper_pearson(k, total, _END) for k in (count, total - count)]
    return ScoreChange(count / total, ends[0], 1 - ends[1])


def _test_mean(
    data: PairedRecords, value: float, base: float, bounds: tuple[float, float]
) -> Evidence:
    """Bet that the mean is above the limit, unit by unit."""
    low, high = bounds
    for records in (data.candidate, data.baseline):
        check_bounds(data.budget.metric, records)
    relative, goal, error = data.budget.relative, data.goal, data.error
    least = low - high if relative else min(data.sign * low, data.sign * high)
    sums, sizes = _shuffle_units(data, data.proof)
    counted, everything = (
        _shuffle_units(data, rows) for rows in (data.counted, np.arange(len(data.units)))
    )
    bound = betting.lower_bound(sums, sizes, least, error)
    # The same bound from both sides: what is lost at most is what is gained at least, turned.
    ends = [
        betting.lower_bound(sign * everything[0], everything[1], end, _END)
        for sign, end in (
            (data.sign, low - high if relative else low),
            (-data.sign, low - high if relative else -high),
        )
    ]
    return Evidence(
        value=value,
        base=base,
        bound=data.sign * bound + (base if relative else 0.0),
        proved=betting.is_mean_above(sums, sizes, goal, least, error),
        units=len(sums),
        needed=betting.estimate_required_units(*everything, goal, least, error),
        inside=None,
        basis=f"sequential test on {data.describe_count(len(sums))}",
        chance=math.exp(-betting.compute_log_capital(*counted, goal, least)),
        change=ScoreChange(value - base if relative else value, ends[0], -ends[1]),
    )


def _shuffle_units(data: PairedRecords, rows: Rows) -> tuple[Floats, Floats]:
    """Return the sum and the size of each unit, whole units in an order that says nothing.

    Of shuffled samples the largest groups would come up first.
    """
    place = np.unique(data.units[rows], return_inverse=True)[1]
    sums = np.bincount(place, data.scores[rows]).astype(np.float64)
    sizes = np.bincount(place).astype(np.float64)
    order = np.random.default_rng(data.seed).permutation(len(sums))
    return sums[order], sizes[order]


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
            fix="declare bounds that hold for every record, or none",
        )


def _bootstrap_figure(data: PairedRecords, value: float, base: float, why: str) -> Evidence:
    """Draw units anew; at best that makes something likely.

    The bootstrap sees no failure that no sample has: the chance is no less than that of missing
    one as frequent as the budget allows.
    """
    metric, relative = data.budget.metric, data.budget.relative

    def score_draw(rows: Rows) -> float:
        score = metric.aggregate(data.candidate[rows])
        return score + base - metric.aggregate(data.baseline[rows]) if relative else score

    def mean(rows: Rows) -> float:
        return data.sign * float(data.scores[rows].mean()) + (base if relative else 0.0)

    order = data.counted[np.argsort(data.units[data.counted], kind="stable")]
    members = np.split(order, np.flatnonzero(np.diff(data.units[order])) + 1)
    noun = data.noun if len(members) == 1 else f"{data.noun}s"
    basis = f"bootstrap over {len(members)} {noun}; {why}"
    if len(members) < _FEWEST:
        bound = -data.sign * math.inf
        return Evidence(value, base, bound, False, None, None, None, basis)
    statistic = mean if metric.kind(data.baseline) is not Kind.FIGURE else score_draw
    estimates = bootstrap.draw_estimates(statistic, members, data.seed)
    bound, low, high = (
        float(np.percentile(estimates, 100 * share))
        for share in (data.error if data.sign > 0 else 1 - data.error, _END, 1 - _END)
    )
    unseen = (1 - _read_allowance(data.budget)) ** len(members)
    middle = base if relative else 0.0
    return Evidence(
        value=value,
        base=base,
        bound=bound,
        proved=False,
        units=None,
        needed=None,
        inside=None,
        basis=basis,
        chance=max(_compute_drawn_chance(data, estimates, base), unseen),
        change=ScoreChange(value - middle, low - middle, high - middle),
    )


def _compute_drawn_chance(data: PairedRecords, estimates: Floats, base: float) -> float:
    """Return twice the share of draws that are outside, or of a normal law of their spread.

    The draws spread as the sample does, which lost less than the budget allows: were that the
    loss, they would spread more. Twice makes up for it (``benchmarks.accuracy.acceptance``).
    """
    outside = sum(not data.budget.admits(float(score), base) for score in estimates)
    ahead = data.sign * (float(estimates.mean()) - data.budget.bound(base))
    spread = float(estimates.std())
    tail = math.erfc(ahead / spread / math.sqrt(2)) / 2 if spread else 0.0
    return min(1.0, 2 * max(outside / len(estimates), tail))
