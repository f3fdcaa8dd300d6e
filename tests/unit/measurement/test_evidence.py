"""What samples prove, by the kind of the metric, with numbers that can be worked out by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from tests.unit.measurement.toys import COSINE, TOP1, Cost, Figure, Mean, column, like

from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.metric import Kind, Metric
from ortune.core.trial import Score, Verdict
from ortune.core.wording import explain_verdict
from ortune.measurement.accuracy import (
    compute_score,
    count_provable_samples,
    judge_accuracy,
    warn_coarse_budget,
)
from ortune.measurement.evidence import (
    Evidence,
    PairedRecords,
    check_bounds,
    number_groups,
    weigh_evidence,
)
from ortune.measurement.statistics import betting, binomial, paired

ERRORS = Budget.parse("max-error<=0.01")


def share(budget: Budget, good: float, bad: float, n: int, outside: int, **more: Any) -> Score:
    records = column([bad] * outside + [good] * (n - outside))
    return judge_accuracy(budget, records, like(records), **more)


class TestShare:
    @pytest.mark.parametrize(
        ("n", "outside", "verdict"),
        [
            (59, 0, Verdict.PROVED),
            (92, 1, Verdict.LIKELY),
            (93, 1, Verdict.PROVED),
            (40, 2, Verdict.UNDECIDED),
            (39, 2, Verdict.FAILS),
            (20, 1, Verdict.UNDECIDED),
            (19, 1, Verdict.FAILS),
        ],
    )
    @pytest.mark.parametrize(
        ("budget", "good", "bad"), [(COSINE, 0.9995, 0.9), (ERRORS, 0.001, 0.1)]
    )
    def test_how_many_may_be_outside(
        self, budget: Budget, good: float, bad: float, n: int, outside: int, verdict: Verdict
    ) -> None:
        score = share(budget, good, bad, n, outside)
        assert score.verdict is verdict
        assert score.inside == pytest.approx(1 - outside / n)
        assert score.value == (bad if verdict is Verdict.FAILS else good)
        assert (score.proved_on == n) is (verdict is Verdict.PROVED)

    def test_the_value_shown_is_what_the_share_of_the_inputs_keeps(self) -> None:
        records = column(1 - np.arange(100) / 1e5)
        score = judge_accuracy(COSINE, records, like(records))
        assert score.value == pytest.approx(1 - 94e-5)
        assert score.low == pytest.approx(1 - 98e-5), "one of 100 may be outside: the second worst"
        assert score.high == math.inf
        worse = judge_accuracy(ERRORS, 1 - records, like(records, 0.0))
        assert worse.value == pytest.approx(94e-5) and worse.high == pytest.approx(98e-5)
        assert worse.low == -math.inf

    def test_few_samples_bound_nothing(self) -> None:
        assert share(COSINE, 1.0, 0.0, 30, 0).low == -math.inf
        assert share(ERRORS, 0.0, 1.0, 30, 0).high == math.inf

    def test_a_group_is_as_good_as_its_worst_sample(self) -> None:
        records = column([1.0, 0.5] + [1.0] * 118)
        groups = [f"photo{i // 2}" for i in range(120)]
        score = judge_accuracy(COSINE, records, like(records), groups)
        assert score.inside == pytest.approx(59 / 60)
        records[1] = 1.0
        score = judge_accuracy(COSINE, records, like(records), groups)
        assert (score.verdict, score.proved_on, score.inside) == (Verdict.PROVED, 60, 1.0)

    def test_one_broken_sample_of_a_group_breaks_it(self) -> None:
        records = column([1.0] * 40)
        records[3] = np.nan
        score = judge_accuracy(COSINE, records, like(records), [f"g{i // 2}" for i in range(40)])
        assert score.verdict is Verdict.FAILS and math.isnan(score.value)

    def test_a_broken_sample_is_outside_wherever_it_is_counted(self) -> None:
        records = column([*[1.0] * 99, np.nan])
        score = judge_accuracy(COSINE, records, like(records))
        assert score.inside == 0.99 and score.basis == "99 of 100 samples inside"
        assert judge_accuracy(COSINE, records[20:], like(records)[20:]).low == -math.inf, (
            "80: none may be"
        )

    @pytest.mark.parametrize(
        "text", ["cosine>=0.9", "cosine(share=0)>=0.9", "top1>=base", "top1>=0"]
    )
    def test_no_sample_fails_every_budget(self, text: str) -> None:
        none = np.zeros((0, 1))
        score = judge_accuracy(Budget.parse(text), none, none)
        assert (score.verdict, score.needed, score.samples) == (Verdict.FAILS, None, 0)

    def test_only_held_out_samples_prove_and_all_decide(self) -> None:
        records = column([0.9] * 2 + [1.0] * 118)
        held = range(60, 120)
        score = judge_accuracy(COSINE, records, like(records), proof=held)
        assert (score.verdict, score.proved_on) == (Verdict.PROVED, 60)
        assert "60 held-out samples" in score.basis
        assert (
            judge_accuracy(COSINE, records, like(records), proof=range(60)).verdict
            is Verdict.LIKELY
        )
        records[:10] = 0.9
        assert judge_accuracy(COSINE, records, like(records), proof=held).verdict is Verdict.FAILS
        assert (
            judge_accuracy(COSINE, like(records), like(records), proof=[]).verdict
            is Verdict.LIKELY
        )

    def test_a_smaller_error_takes_more_samples(self) -> None:
        for n, verdict in ((79, Verdict.LIKELY), (80, Verdict.PROVED)):
            score = share(COSINE, 1.0, 0.0, n, 0, error=0.05 / 3)
            assert (score.verdict, score.error) == (verdict, 0.05 / 3)
        assert share(COSINE, 1.0, 0.0, 20, 0, error=0.05 / 3).needed == 80

    def test_a_relative_limit_is_of_each_samples_own_loss(self) -> None:
        budget = Budget(COSINE.metric, -0.01, relative=True)
        base = column(np.linspace(0.5, 1.0, 60))
        score = judge_accuracy(budget, base - 0.005, base)
        assert score.verdict is Verdict.PROVED
        assert score.base - score.value == pytest.approx(0.005)
        assert judge_accuracy(budget, base - 0.02, base).verdict is Verdict.FAILS
        assert judge_accuracy(budget, base[::-1].copy(), base).verdict is Verdict.FAILS, "paired"

    def test_rounding_at_the_limit_is_forgiven(self) -> None:
        assert share(COSINE, 0.999 - 1e-12, 0.0, 59, 0).verdict is Verdict.PROVED
        assert share(COSINE, 0.999 - 1e-6, 0.0, 59, 0).verdict is Verdict.FAILS


class TestRight:
    def test_an_absolute_limit_is_clopper_and_pearsons(self) -> None:
        budget = Budget(TOP1.metric, 0.8)
        records = column([0.0] * 10 + [1.0] * 90)
        score = judge_accuracy(budget, records, like(records))
        assert score.low == pytest.approx(beta.ppf(0.05, 90, 11))
        assert score.verdict is Verdict.PROVED and score.proved_on == 100
        tight = judge_accuracy(Budget(TOP1.metric, 0.85), records, like(records))
        assert tight.verdict is Verdict.LIKELY and tight.needed is not None and tight.needed > 100
        assert (
            judge_accuracy(Budget(TOP1.metric, 0.91), records, like(records)).verdict
            is Verdict.FAILS
        )

    def test_lost_and_won_answers_are_counted_by_sample(self) -> None:
        base, cand = np.ones(1000), np.ones(1000)
        base[:30], cand[20:40] = 0, 0
        score = judge_accuracy(TOP1, column(cand), column(base))
        assert "10 lost, 20 won of 1000 samples" in score.basis
        assert score.value == pytest.approx(0.98) and score.base == pytest.approx(0.97)
        assert (score.verdict is Verdict.PROVED) is (
            paired.p_value(1000, 10, 20, 0.01, 0.05) <= 0.05
        )

    def test_the_bound_that_is_shown_never_contradicts_the_verdict(self) -> None:
        for n in range(290, 310):
            score = judge_accuracy(TOP1, column(np.ones(n)), column(np.ones(n)))
            assert (score.low >= score.base - 0.01) is (score.verdict is Verdict.PROVED)

    def test_in_groups_it_is_bet_on_lost_minus_won(self) -> None:
        groups = [f"g{i // 2}" for i in range(2000)]
        ones = column(np.ones(2000))
        score = judge_accuracy(TOP1, ones, ones, groups)
        assert (score.verdict, score.proved_on) == (Verdict.PROVED, 1000)
        assert "sequential test on 1000 groups" in score.basis
        few = judge_accuracy(TOP1, ones[:400], ones[:400], groups[:400])
        assert few.verdict is Verdict.UNDECIDED and few.needed is not None and few.needed > 300


class TestMean:
    LOSS = Budget(Mean(), -0.05, relative=True)

    def test_unchanged_records_prove_from_the_number_that_is_told_on(self) -> None:
        n = count_provable_samples(self.LOSS, column([0.5]))
        assert n == betting.compute_min_units(0.05, 1.0, 0.05)
        assert n is not None
        for count, verdict in ((n - 1, Verdict.LIKELY), (n, Verdict.PROVED)):
            records = column(np.full(count, 0.7))
            score = judge_accuracy(self.LOSS, records, records)
            assert score.verdict is verdict
        assert score.proved_on == n and score.value == score.base == pytest.approx(0.7)

    def test_a_cost_is_a_score_turned_round(self) -> None:
        rng = np.random.default_rng(0)
        base = column(rng.random(400))
        cand = np.clip(base - 0.01 * rng.random((400, 1)), 0, 1)
        good = judge_accuracy(self.LOSS, cand, base, seed=3)
        turned = judge_accuracy(Budget(Cost(), 0.05, relative=True), 1 - cand, 1 - base, seed=3)
        assert good.verdict is turned.verdict is Verdict.PROVED
        assert turned.high == pytest.approx(1 - good.low)
        assert (turned.low, good.high) == (-math.inf, math.inf)
        absolute = judge_accuracy(Budget(Mean(), 0.3), cand, base, seed=3)
        mirrored = judge_accuracy(Budget(Cost(), 0.7), 1 - cand, 1 - base, seed=3)
        assert absolute.verdict is mirrored.verdict is Verdict.PROVED
        assert mirrored.high == pytest.approx(1 - absolute.low)
        assert 0.3 < absolute.low < absolute.value

    def test_the_bound_is_of_the_paired_difference(self) -> None:
        base = column(np.random.default_rng(1).random(300))
        score = judge_accuracy(self.LOSS, base, base)
        assert score.base - 0.05 < score.low < score.base
        wide = judge_accuracy(Budget(Mean(), 0.4), base, base)
        assert wide.low < score.low, "samples differ more than their losses"

    def test_a_record_outside_its_bounds_is_refused(self) -> None:
        records = column([0.5, 1.2, 0.5])
        for cand, base in ((records, like(records, 0.5)), (like(records, 0.5), records)):
            with pytest.raises(BadData, match=r"1\.2, outside its bounds 0 and 1"):
                judge_accuracy(self.LOSS, cand, base)
        with pytest.raises(BadData, match=r"-0\.1, outside"):
            judge_accuracy(self.LOSS, column([-0.1]), column([0.5]))
        edge = column([0.0, 1.0, 1.0 + 1e-12])
        assert judge_accuracy(self.LOSS, edge, edge).verdict is Verdict.UNDECIDED

    def test_without_bounds_nothing_is_proved(self) -> None:
        records = column(np.full(5000, 0.7))
        budget = Budget(Mean(known=None), -0.05, relative=True)
        score = judge_accuracy(budget, records, records)
        assert (score.verdict, score.needed, score.proved_on) == (Verdict.LIKELY, None, None)
        assert score.basis.startswith("bootstrap over 5000 samples")
        assert count_provable_samples(budget, records) is None

    def test_the_order_of_bets_is_the_seeds(self) -> None:
        cand = column((np.arange(100) % 20 > 0).astype(float))
        found = {judge_accuracy(self.LOSS, cand, like(cand), seed=seed).low for seed in range(8)}
        assert len(found) > 1
        same = {judge_accuracy(self.LOSS, cand, like(cand), seed=5).low for _ in range(3)}
        assert len(same) == 1


class TestFigure:
    def test_it_is_likely_at_best_with_the_interval_of_the_paired_difference(self) -> None:
        rng = np.random.default_rng(2)
        base = column(rng.random(400))
        budget = Budget(Figure(), -0.05, relative=True)
        score = judge_accuracy(budget, base * 0.98, base)
        assert score.verdict is Verdict.LIKELY and score.needed is None
        assert score.value - score.low < 0.002, "samples differ much, their losses hardly"
        unpaired = judge_accuracy(Budget(Figure(), 0.1), base * 0.98, base)
        assert unpaired.value - unpaired.low > 0.01
        assert judge_accuracy(budget, base * 0.5, base).verdict is Verdict.FAILS

    def test_lower_is_better_shows_the_upper_end(self) -> None:
        base = column(np.random.default_rng(2).random(50))
        score = judge_accuracy(Budget(Cost(known=None), 0.9), base, base)
        assert score.low == -math.inf and score.value < score.high < 0.7

    def test_groups_are_drawn_as_wholes(self) -> None:
        rng = np.random.default_rng(4)
        records = column(np.repeat(rng.random(20), 20))
        groups = [f"g{i // 20}" for i in range(400)]
        alone = judge_accuracy(Budget(Figure(), 0.1), records, like(records))
        grouped = judge_accuracy(Budget(Figure(), 0.1), records, like(records), groups)
        assert grouped.value - grouped.low > 2.5 * (alone.value - alone.low)


@pytest.mark.parametrize(
    ("budget", "n"),
    [
        (COSINE, 59),
        (Budget.parse("cosine(share=0.9)>=0.999"), 29),
        (Budget.parse("cosine(share=0)>=0.999"), None),
        (TOP1, 299),
        (Budget.parse("top1>=base"), None),
        (Budget(Figure(), 0.5), None),
        (Budget(Mean(known=None), 0.5), None),
        (Budget(Cost(), 0.05, relative=True), 74),
        (Budget(Mean(), 0.05, relative=True), None),
    ],
)
def test_how_many_unread_samples_prove_an_unchanged_answer(budget: Budget, n: int | None) -> None:
    assert count_provable_samples(budget, None) == n


def test_of_an_absolute_limit_it_depends_on_the_baseline() -> None:
    right = column([1.0] * 95 + [0.0] * 5)
    near, far = (
        count_provable_samples(Budget(TOP1.metric, limit), right) for limit in (0.94, 0.8)
    )
    assert near is not None and far is not None and near > 10 * far > 0
    assert count_provable_samples(Budget(TOP1.metric, 0.96), right) is None
    assert count_provable_samples(Budget(Mean(), 0.8), None) is None
    mean = count_provable_samples(Budget(Mean(), 0.8), right)
    assert mean is not None and mean > far
    assert count_provable_samples(TOP1, right, grouped=True) == betting.compute_min_units(
        0.01, 1.0, 0.05
    )
    assert count_provable_samples(Budget(TOP1.metric, 0.8), right, grouped=True) == mean
    assert count_provable_samples(Budget(Cost(), 0.2), 1 - right) == mean, "a score turned round"
    assert count_provable_samples(Budget(Mean(), 0.8), right[:0]) is None


def test_what_is_asked_of_groups_is_said_of_groups() -> None:
    ones = column(np.ones(4))
    assert judge_accuracy(COSINE, ones, ones).claim == "at least 95 % of inputs keep cosine 0.999"
    grouped = judge_accuracy(COSINE, ones, ones, list("aabb")).claim
    assert grouped == "at least 95 % of groups keep cosine 0.999"


@pytest.mark.parametrize(
    ("text", "n", "said"),
    [
        ("top1>=base-0.01", 99, "99 scored samples cannot tell 0.01: one is 0.01"),
        ("top1>=base-0.01", 100, ""),
        ("top1>=base-0.01", 1, "1 scored sample cannot tell 0.01: one is 1"),
        ("top1>=base-0.01", 0, ""),
        ("top1>=0.99", 60, "60 scored samples cannot tell 0.01: one is 0.017"),
        ("top1>=base", 9, ""),
        ("top1>=base-1", 9, ""),
        ("top1>=1", 9, ""),
        ("top1>=1.5", 9, ""),
        ("top1>=0", 9, ""),
        ("cosine>=0.999", 9, ""),
    ],
)
def test_a_budget_finer_than_one_sample(text: str, n: int, said: str) -> None:
    assert warn_coarse_budget(Budget.parse(text), n) == said
    assert warn_coarse_budget(Budget.parse(text), n, column([0.0, 1.0])) == said
    assert warn_coarse_budget(Budget.parse(text), n, column([0.5, 1.0])) == ""


@pytest.mark.parametrize(
    ("decibels", "exact", "verdict"),
    [
        (80.0, True, Verdict.PROVED),
        (79.9, True, Verdict.LIKELY),
        (60.0, True, Verdict.LIKELY),
        (59.9, True, Verdict.UNDECIDED),
        (200.0, False, Verdict.UNDECIDED),
        (None, True, Verdict.LIKELY),
        (math.nan, True, Verdict.LIKELY),
    ],
)
def test_exact_steps_prove_from_80_decibels_on(
    decibels: float | None, exact: bool, verdict: Verdict
) -> None:
    records = column(np.ones(9))
    score = judge_accuracy(TOP1, records, records, exact=exact, snr_db=decibels)
    assert (score.verdict, score.proved_on) == (verdict, None)
    assert judge_accuracy(TOP1, records, records, snr_db=decibels).verdict is Verdict.UNDECIDED
    lost = judge_accuracy(TOP1, like(records, 0.0), records, exact=exact, snr_db=decibels)
    assert lost.verdict is Verdict.FAILS and lost.needed is None


@pytest.mark.parametrize(
    "budget", [COSINE, TOP1, Budget(Mean(), 0.1), Budget(Figure(), 0.1), Budget(Cost(), 0.9)]
)
def test_what_is_no_number_fails_on_either_side(budget: Budget) -> None:
    whole = column(np.ones(99) * 0.999)
    broken = whole.copy()
    broken[7] = np.nan
    for cand, base in ((broken, whole), (broken, broken)):
        assert judge_accuracy(budget, cand, base).verdict is Verdict.FAILS


def test_one_side_alone_has_the_same_score() -> None:
    records = column(1 - np.arange(100) / 1e5)
    groups = [f"g{i // 10}" for i in range(100)]
    for given in (None, groups):
        judged = judge_accuracy(COSINE, records, like(records), given)
        assert compute_score(COSINE.metric, records, given) == judged.value
    assert compute_score(Mean(), records) == pytest.approx(float(records.mean()))
    errors = compute_score(ERRORS.metric, 1 - records)
    assert errors == pytest.approx(94e-5)


def test_samples_are_numbered_by_group() -> None:
    assert number_groups(None, 3).tolist() == [0, 1, 2]
    assert len(set(number_groups(["b", "a", "b"], 3))) == 2
    assert number_groups(["b", "a", "b"], 3)[0] == number_groups(["b", "a", "b"], 3)[2]


KINDS: list[tuple[Callable[[], Metric], Kind]] = [(Mean, Kind.MEAN), (Figure, Kind.FIGURE)]


@pytest.mark.parametrize(("made", "kind"), KINDS)
def test_an_aggregate_of_its_own_is_no_mean(made: Callable[[], Metric], kind: Kind) -> None:
    assert made().kind(None) is kind


def test_without_a_word_plans_are_not_exact_and_the_order_is_that_of_seed_0() -> None:
    records = column(1 - np.random.default_rng(6).random(100) ** 4)
    budget = TestMean.LOSS
    plain = judge_accuracy(budget, records, like(records))
    assert plain == judge_accuracy(budget, records, like(records), seed=0)
    assert plain.low != judge_accuracy(budget, records, like(records), seed=1).low
    assert judge_accuracy(TOP1, records, records, snr_db=200.0).verdict is Verdict.UNDECIDED


def test_in_groups_and_between_wide_bounds_an_absolute_limit_is_bet_on() -> None:
    right = column([1.0] * 95 + [0.0] * 5)
    top1 = Budget(TOP1.metric, 0.8)
    wanted = betting.estimate_required_units(right[:, 0], np.ones(100), 0.8, 0.0, 0.05)
    assert (
        count_provable_samples(top1, right, grouped=True)
        == wanted
        != count_provable_samples(top1, right)
    )
    assert count_provable_samples(top1, column([])) is None
    costs = column([1.0, 0.5] * 9)
    wanted = betting.estimate_required_units(-costs[:, 0], np.ones(18), -2.0, -4.0, 0.05)
    assert count_provable_samples(Budget(Cost(known=(0.0, 4.0)), 2.0), costs) == wanted
    assert wanted is not None


def test_large_groups_are_not_bet_on_first() -> None:
    """Groups of 20 are right and many of one are wrong: the share right is just the limit."""
    budget, found = Budget(Mean(), 0.1), 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sizes = np.where(rng.random(1000) < 1 / 181, 20, 1)
        groups = [f"g{at}" for at, size in enumerate(sizes) for _ in range(size)]
        right = np.repeat((sizes == 20).astype(float), sizes)
        score = judge_accuracy(budget, right[:, None], like(right[:, None]), groups, seed=seed)
        found += score.low > 0.1
    assert found <= 5  # of 40 at 5 %, exceeded with a chance of 1 %


def test_in_groups_it_is_groups_that_would_prove_it() -> None:
    groups = [f"photo{at // 2}" for at in range(60)]
    score = judge_accuracy(COSINE, column([0.9995] * 60), column([1.0] * 60), groups)
    assert "; proving it needs about 59 independent groups" in explain_verdict(score)


@pytest.mark.parametrize("budget", [COSINE, TOP1, Budget(Mean(), -0.1, relative=True)])
def test_without_unread_samples_the_sentence_counts_none(budget: Budget) -> None:
    ones = column([1.0] * 5)
    score = judge_accuracy(budget, ones, ones, proof=[])
    assert "on 5 samples (no held-out samples); one just outside" in explain_verdict(score)
    assert "; proving it needs about " in explain_verdict(score)


# What samples prove: rules that hold for every kind, and the edges of each.


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


class TestRightRules:
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


class TestMeanRules:
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
