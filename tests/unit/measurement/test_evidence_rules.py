"""What samples prove: rules that hold for every kind, and the edges of each."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.measurement.toys import TOP1, Cost, Figure, Mean, column

from ortune.core.budget import Budget
from ortune.core.metric import Metric
from ortune.core.trial import Verdict
from ortune.measurement.accuracy import compute_score, count_provable_samples, judge_accuracy
from ortune.measurement.evidence import Evidence, PairedRecords, check_bounds, weigh_evidence
from ortune.measurement.statistics import betting, binomial, paired

BUDGETS = [
    *("cosine>=0.9", "cosine(share=0.5)>=0.9", "cosine(share=0)>=0.9", "max-error<=0.3"),
    *("top1>=base-0.1", "top1>=0.5"),
]


@pytest.mark.parametrize("text", BUDGETS)
@pytest.mark.parametrize("groups", [None, [f"g{i // 3}" for i in range(60)]])
def test_a_side_alone_scores_as_it_is_judged(text: str, groups: list[str] | None) -> None:
    budget, rng = Budget.parse(text), np.random.default_rng(6)
    records = rng.random((60, 1)) if "top1" not in text else column(rng.random(60) > 0.2)
    found = judge_accuracy(budget, records, column(np.ones(60)), groups)
    assert compute_score(budget.metric, records, groups) == found.value
    assert compute_score(budget.metric, column(np.ones(60)), groups) == found.base


@pytest.mark.parametrize("text", BUDGETS)
def test_a_baseline_that_is_not_a_number_fails_too(text: str) -> None:
    good, broken = column(np.ones(9)), column([*np.ones(8), math.nan])
    budget = replace(Budget.parse(text), relative=True, limit=0.0)
    assert judge_accuracy(budget, good, broken).verdict is Verdict.FAILS
    assert judge_accuracy(budget, broken, good).verdict is Verdict.FAILS


def test_a_figure_of_bounded_records_is_not_proved() -> None:
    ones = column(np.ones(5000))
    for budget in (Budget(Figure(), -0.1, relative=True), Budget(Figure(), 0.1)):
        assert count_provable_samples(budget, ones) is None
        score = judge_accuracy(budget, ones, ones)
        assert score.verdict is Verdict.LIKELY and "a figure is not proved" in score.basis


@pytest.mark.parametrize(("share", "n", "best"), [(0.1, 5, 1), (0.55, 100, 55), (0.5, 3, 2)])
def test_a_share_of_few_is_counted_up(share: float, n: int, best: int) -> None:
    """The product of 0.55 and 100 lies just above 55."""
    records = column(np.arange(n) / n)
    score = judge_accuracy(Budget.parse(f"cosine(share={share})>=-1"), records, column(np.ones(n)))
    assert score.value == pytest.approx((n - best) / n)


def test_a_sample_at_its_limit_is_inside_but_for_rounding() -> None:
    for gap, inside in ((1e-12, 1.0), (1e-6, 0.0)):
        records = column(np.full(60, 0.9 - gap))
        score = judge_accuracy(Budget.parse("cosine>=0.9"), records, column(np.ones(60)))
        assert score.inside == inside
        assert score.basis.startswith("60 of 60" if inside else "0 of 60")


def test_what_a_record_can_lose_is_the_reach_of_its_bounds() -> None:
    budget = Budget(Mean(known=(0.5, 1.5)), -0.05, relative=True)
    assert count_provable_samples(budget, None) == betting.compute_min_units(0.05, 1.0, 0.05)


def weighed(budget: Budget, candidate: np.ndarray, baseline: np.ndarray) -> Evidence:
    rows = np.arange(len(candidate))
    return weigh_evidence(PairedRecords(budget, candidate, baseline, rows, rows, 0.05, 0, rows))


@pytest.mark.parametrize("metric", [TOP1.metric, Mean(), Figure(), Cost()])
def test_what_is_no_number_bounds_and_proves_nothing(metric: Metric) -> None:
    good, broken = column(np.ones(400)), column([*np.ones(399), math.nan])
    for cand, base in ((broken, good), (good, broken)):
        found = weighed(Budget(metric, 0.0, relative=True), cand, base)
        assert (found.bound, found.proved) == (math.inf if metric == Cost() else -math.inf, False)
        assert (found.units, found.needed, found.basis) == (None, None, "not a number")


def test_rounding_is_forgiven_by_the_size_of_the_limit_and_of_one_at_least() -> None:
    for limit, more, inside in ((1e3, 1e-7, 1.0), (1e3, 1e-5, 0.0), (0.01, 5e-10, 1.0)):
        records = column(np.full(60, limit + more))
        score = judge_accuracy(Budget.parse(f"max-error<={limit}"), records, column(np.zeros(60)))
        assert score.inside == inside


def test_of_the_fewest_samples_that_prove_the_worst_is_the_bound() -> None:
    records = column(np.linspace(0.95, 1.0, 59))
    assert judge_accuracy(Budget.parse("cosine>=0.9"), records, column(np.ones(59))).low == 0.95


def test_the_bound_of_a_relative_share_is_from_the_bases_own() -> None:
    base = column(np.linspace(0.5, 1.0, 60))
    score = judge_accuracy(
        Budget(Budget.parse(BUDGETS[0]).metric, -0.01, relative=True), base - 0.005, base
    )
    assert score.low == pytest.approx(score.base - 0.005)


def test_a_metric_that_asks_no_share_of_these_records_is_their_mean() -> None:
    """One decision an input is right or wrong; a share is asked of several."""
    metric = Budget.parse("agreement>=0.9").metric
    one = np.array([[float(at % 3 > 0), 1.0] for at in range(30)])
    assert metric.kept_by and compute_score(metric, one) == pytest.approx(20 / 30)


def test_what_declares_no_bounds_keeps_them() -> None:
    check_bounds(Mean(known=None), column([-9.0, 9.0]))


def test_two_groups_are_drawn_as_wholes() -> None:
    records, groups = column([0.0] * 10 + [1.0] * 10), ["a"] * 10 + ["b"] * 10
    wide = 0.5 * math.sqrt(2)  # of two units, whose means are 0 and 1
    low = judge_accuracy(Budget(Mean(known=None), 0.1), records, records, groups).low
    high = judge_accuracy(Budget(Cost(known=None), 0.9), records, records, groups).high
    assert (low, high) == (pytest.approx(0.5 - wide), pytest.approx(0.5 + wide))


def test_a_figures_bound_is_worse_than_the_figure() -> None:
    base = column(np.random.default_rng(2).random(400))
    score = judge_accuracy(Budget(Figure(), -0.05, relative=True), base**1.02, base)
    assert 1e-5 < score.value - score.low < 0.01


class TestRight:
    def test_a_limit_that_is_just_the_bound_is_proved(self) -> None:
        cand = column([0.0] * 10 + [1.0] * 90)
        least = binomial.compute_clopper_pearson(90, 100, 0.05)
        for more, verdict in ((0.0, Verdict.PROVED), (1e-8, Verdict.LIKELY)):
            budget = Budget(TOP1.metric, least + more)
            assert judge_accuracy(budget, cand, column(np.ones(100))).verdict is verdict

    def test_how_many_more_are_needed_is_by_what_all_samples_show(self) -> None:
        base, cand = np.ones(400), np.ones(400)
        cand[:2], base[10:13] = 0, 0
        score = judge_accuracy(TOP1, column(cand), column(base), proof=range(200, 400))
        assert score.verdict is Verdict.LIKELY
        assert score.needed == paired.estimate_required_samples(2 / 400, 3 / 400, 0.01, 0.05)
        right = Budget(TOP1.metric, 0.99)
        score = judge_accuracy(right, column(cand), column(base), proof=range(200, 400))
        assert score.needed == binomial.find_required_samples(398 / 400, 0.99, 0.05)

    def test_only_the_rows_of_the_proof_are_counted(self) -> None:
        base, cand = np.ones(400), np.ones(400)
        cand[:3], base[3:5] = 0, 0
        score = judge_accuracy(TOP1, column(cand), column(base), proof=range(2, 400))
        assert "1 lost, 2 won of 398 held-out samples, exact" in score.basis
        absolute = judge_accuracy(
            Budget(TOP1.metric, 0.5), column(cand), column(base), proof=range(2, 400)
        )
        assert "397 right of 398 held-out samples, exact" in absolute.basis
        assert absolute.low == pytest.approx(binomial.compute_clopper_pearson(397, 398, 0.05))

    def test_groups_of_one_among_the_proof_are_tested_exactly(self) -> None:
        ones = column(np.ones(400))
        groups = ["a"] * 50 + [f"g{i}" for i in range(350)]
        assert "exact" in judge_accuracy(TOP1, ones, ones, groups, proof=range(50, 400)).basis
        assert "sequential" in judge_accuracy(TOP1, ones, ones, groups, proof=range(40, 400)).basis

    @pytest.mark.parametrize("side", [0, 1])
    def test_what_is_half_right_is_bet_on(self, side: int) -> None:
        sides = [column(np.ones(400)), column(np.ones(400))]
        sides[side][7] = 0.5
        assert "sequential test on 400 samples" in judge_accuracy(TOP1, sides[0], sides[1]).basis


class TestMean:
    def test_the_bound_is_relative_to_the_base_where_the_limit_is(self) -> None:
        rng = np.random.default_rng(3)
        base = column(rng.random(500))
        cand = np.clip(base + 0.02 * (rng.random((500, 1)) - 0.5), 0, 1)
        for metric, sign in ((Mean(), 1), (Cost(), -1)):
            unknown = replace(metric, known=None)
            for relative in (True, False):
                limit = -sign * 0.05 if relative else 0.5 - sign * 0.2
                proved, drawn = (
                    judge_accuracy(Budget(one, limit, relative), cand, base)
                    for one in (metric, unknown)
                )
                far = sign * (proved.value - (proved.low if sign > 0 else proved.high))
                near = sign * (drawn.value - (drawn.low if sign > 0 else drawn.high))
                assert 0 < near < far < 0.2
                assert (near < 0.002) is relative, "samples differ more than their changes"
                assert proved.verdict is Verdict.PROVED and drawn.verdict is Verdict.LIKELY

    def test_what_is_needed_is_by_all_samples_and_in_units(self) -> None:
        cand = column(np.where(np.arange(300) % 100 == 7, 0.0, 1.0))
        ones, groups = column(np.ones(300)), [f"g{i // 3}" for i in range(300)]
        budget = Budget(Mean(), -0.05, relative=True)
        alone = judge_accuracy(budget, cand, ones, proof=range(30)).needed
        grouped = judge_accuracy(budget, cand, ones, groups, proof=range(30)).needed
        assert alone is not None and grouped is not None
        assert alone / 3 < grouped < alone

    def test_bounds_are_kept_but_for_rounding_of_their_size(self) -> None:
        wide = Budget(Mean(known=(0.0, 1e6)), -1e5, relative=True)
        edge = column([0.0, 1e6 + 1e-4, -1e-4])
        assert judge_accuracy(wide, edge, edge).verdict is Verdict.UNDECIDED


def test_a_lone_group_is_said_to_be_one() -> None:
    ones = column(np.ones(5))
    budget = Budget(Figure(), 0.5)
    assert judge_accuracy(budget, ones, ones, ["a"] * 5).basis.startswith(
        "bootstrap over 1 group;"
    )
    assert judge_accuracy(budget, ones, ones).basis.startswith("bootstrap over 5 samples;")
