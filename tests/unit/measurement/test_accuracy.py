"""The accuracy verdict, by the kind of the metric."""

import math
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.measurement.toys import COSINE, TOP1, column

from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.plugins import codec
from ortune.core.trial import Score, Verdict
from ortune.core.wording import describe_needed, explain_verdict
from ortune.measurement.accuracy import (
    count_provable_samples,
    decide_likely,
    is_within_reach,
    judge_accuracy,
    require_provable,
    warn_coarse_budget,
)


def flips(n: int, lost: int, won: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """0/1 records: the candidate loses `lost` samples that the baseline has right."""
    base, cand = np.ones(n), np.ones(n)
    base[n - won :] = 0
    cand[:lost] = 0
    return column(cand), column(base)


def test_299_unchanged_answers_prove_a_point_of_top1_and_298_do_not() -> None:
    score = judge_accuracy(TOP1, *flips(298, 0))
    assert score.verdict is Verdict.LIKELY
    assert score.needed == count_provable_samples(TOP1, None) == 299
    score = judge_accuracy(TOP1, *flips(299, 0))
    assert (score.verdict, score.proved_on, score.needed) == (Verdict.PROVED, 299, None)


def test_many_samples_prove_a_small_loss() -> None:
    score = judge_accuracy(TOP1, *flips(9000, 20))
    assert score.verdict is Verdict.PROVED
    assert score.base - 0.01 < score.low < score.value


def test_a_loss_beyond_the_budget_fails() -> None:
    assert judge_accuracy(TOP1, *flips(200, 5)).verdict is Verdict.FAILS


def test_losses_and_gains_are_paired() -> None:
    score = judge_accuracy(TOP1, *flips(1000, 8, won=8))
    assert score.value == score.base
    assert score.low == pytest.approx(score.base - 0.0075, abs=0.001)


def test_groups_count_once() -> None:
    groups = [f"photo{i // 100}" for i in range(2000)]
    assert judge_accuracy(TOP1, *flips(2000, 4)).verdict is Verdict.PROVED
    assert judge_accuracy(TOP1, *flips(2000, 4), groups).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(("n", "verdict"), [(58, Verdict.LIKELY), (59, Verdict.PROVED)])
def test_59_samples_prove_a_share(n: int, verdict: Verdict) -> None:
    score = judge_accuracy(COSINE, column(np.full(n, 0.9995)), column(np.ones(n)))
    assert (score.verdict, score.inside, score.share) == (verdict, 1.0, 0.95)
    assert count_provable_samples(COSINE, None) == 59


def test_nan_fails() -> None:
    cand, base = flips(10, 0)
    cand[3] = np.nan
    for budget in ("top1>=0.1", "cosine>=0.1", "max-error<=10", "cosine(share=0)>=0.1"):
        assert judge_accuracy(Budget.parse(budget), cand, base).verdict is Verdict.FAILS


def test_exact_plans_with_equal_outputs_are_proved_by_few_samples() -> None:
    cand, base = flips(10, 0)
    proved = judge_accuracy(TOP1, cand, base, exact=True, snr_db=110.0)
    assert (proved.verdict, proved.proved_on) == (Verdict.PROVED, None)
    assert judge_accuracy(TOP1, cand, base, exact=True, snr_db=40.0).verdict is Verdict.UNDECIDED
    assert judge_accuracy(TOP1, cand, base, exact=True, snr_db=math.nan).verdict is Verdict.LIKELY
    lossy = judge_accuracy(TOP1, cand, base, exact=False, snr_db=110.0)
    assert lossy.verdict is Verdict.UNDECIDED


def test_a_budget_is_met_exactly_in_spite_of_binary_fractions() -> None:
    assert TOP1.admits(0.875, 0.885)
    assert not TOP1.admits(0.870, 0.885)


def test_a_budget_finer_than_the_data_is_said() -> None:
    assert warn_coarse_budget(TOP1, 60) == "60 scored samples cannot tell 0.01: one is 0.017"
    assert warn_coarse_budget(TOP1, 100) == ""


SCORES = """
import numpy as np

def plain(expected, actual, label): ...
def unit(expected, actual, label): ...
unit.bounds = (0, 1)
def loss(expected, actual, label): ...
loss.bounds, loss.higher_is_better = (0, 2), False
def kept(expected, actual, label): ...
kept.share = 0.9
def f1(expected, actual, label): ...
f1.aggregate = lambda rows: 2 * rows[:, 0].sum() / (rows[:, 1].sum() + rows[:, 2].sum())
def odd(expected, actual, label): ...
odd.bounds, odd.share = (1, 0), 1.5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accuracy_scores.py").write_text(SCORES)
    monkeypatch.syspath_prepend(str(tmp_path))


def budget(text: str) -> Budget:
    return Budget.parse(f"accuracy_scores:{text}")


RNG = np.random.default_rng(5)


def rows(n: int, level: float, noise: float = 0.02) -> np.ndarray:
    return column(np.clip(RNG.normal(level, noise, n), 0, 1))


def test_a_group_is_inside_when_all_its_samples_are() -> None:
    records, groups = np.full(118, 0.9995), [f"g{i // 2}" for i in range(118)]
    score = judge_accuracy(COSINE, column(records), column(np.ones(118)), groups)
    assert (score.verdict, score.proved_on) == (Verdict.PROVED, 59)
    assert "59 of 59 groups inside" in explain_verdict(score)
    records[3] = 0.9
    score = judge_accuracy(COSINE, column(records), column(np.ones(118)), groups)
    assert (score.verdict, score.inside) == (Verdict.UNDECIDED, 58 / 59)


def test_the_value_is_what_a_share_keeps() -> None:
    records = column(1 - np.arange(100) / 100)
    score = judge_accuracy(Budget.parse("cosine(share=0.9)>=0.11"), records, column(np.ones(100)))
    assert score.value == pytest.approx(0.11)
    assert (score.verdict, score.inside, score.needed) == (Verdict.UNDECIDED, 0.9, None)
    score = judge_accuracy(Budget.parse("cosine(share=0.9)>=0.111"), records, column(np.ones(100)))
    assert score.verdict is Verdict.FAILS
    errors = column(np.arange(100.0))
    score = judge_accuracy(Budget.parse("max-error(share=0.9)<=89"), errors, errors * 0)
    assert (score.value, score.verdict) == (89.0, Verdict.UNDECIDED)
    assert (score.low, score.high > 89) == (-math.inf, True)


def test_quiet_samples_are_not_hidden_by_loud_ones() -> None:
    """Ten quiet samples of a hundred are noise; the pooled figure does not see them."""
    records = np.tile([1e6, 1e2], (100, 1))
    records[:10] = 1.0
    base = records * [1, 0]
    assert judge_accuracy(Budget.parse("snr>=30"), records, base).verdict is Verdict.FAILS
    score = judge_accuracy(Budget.parse("snr(share=0)>=30"), records, base)
    assert (score.verdict, score.share, score.proved_on) == (Verdict.LIKELY, None, None)


def test_a_proof_rests_on_rows_that_nobody_read() -> None:
    good, base = np.full(118, 0.9995), column(np.ones(118))
    assert (
        judge_accuracy(COSINE, column(good), base, proof=range(60, 118)).verdict is Verdict.LIKELY
    )
    score = judge_accuracy(COSINE, column(good), base, proof=range(59, 118))
    assert (score.verdict, score.proved_on, score.samples) == (Verdict.PROVED, 59, 118)
    assert "59 of 59 held-out samples inside" in explain_verdict(score)
    good[59] = 0.5
    assert (
        judge_accuracy(COSINE, column(good), base, proof=range(59, 118)).verdict is Verdict.LIKELY
    )
    good[:10] = 0.5
    assert (
        judge_accuracy(COSINE, column(good), base, proof=range(60, 118)).verdict is Verdict.FAILS
    )
    assert judge_accuracy(COSINE, base, base, proof=()).verdict is Verdict.LIKELY
    cand, same = flips(400, 1)
    assert judge_accuracy(TOP1, cand, same, proof=range(100, 400)).verdict is Verdict.PROVED
    assert judge_accuracy(TOP1, cand, same, proof=range(300)).verdict is Verdict.LIKELY


@pytest.mark.parametrize("n", [299, 300])
def test_the_error_is_divided_and_said(n: int) -> None:
    score = judge_accuracy(TOP1, *flips(n, 0), error=0.05 / 3)
    assert (score.verdict, score.error) == (Verdict.LIKELY, 0.05 / 3)
    assert score.needed == count_provable_samples(TOP1, None, 0.05 / 3)
    assert score.needed is not None
    score = judge_accuracy(TOP1, *flips(score.needed, 0), error=0.05 / 3)
    assert score.verdict is Verdict.PROVED
    assert "with 98.3 % confidence top1 falls by at most 0.01" in explain_verdict(score)


def test_one_decision_a_sample_is_right_or_wrong_and_several_are_a_share() -> None:
    agreement = Budget.parse("agreement>=0.99")
    single, several = np.ones((299, 2)), np.ones((59, 2)) * [1, 7]
    assert judge_accuracy(agreement, single, single).proved_on == 299
    assert judge_accuracy(agreement, single[1:], single[1:]).verdict is Verdict.LIKELY
    assert judge_accuracy(agreement, several, several).proved_on == 59
    assert count_provable_samples(agreement, single) == 299
    assert count_provable_samples(agreement, several) == 59
    lost = single.copy()
    lost[:2, 0] = 0
    assert judge_accuracy(agreement, lost, single).verdict is Verdict.UNDECIDED
    lost[2, 0] = 0
    assert judge_accuracy(agreement, lost, single).verdict is Verdict.FAILS


def test_a_mean_is_proved_only_where_its_bounds_are_declared() -> None:
    base = rows(600, 0.8)
    score = judge_accuracy(budget("plain>=base-0.01"), base, base)
    assert (score.verdict, score.needed) == (Verdict.LIKELY, None)
    assert count_provable_samples(budget("plain>=base-0.01"), base) is None
    score = judge_accuracy(budget("unit>=base-0.01"), base, base)
    assert (score.verdict, score.proved_on) == (Verdict.PROVED, 600)
    least = count_provable_samples(budget("unit>=base-0.01"), base)
    assert least == 375
    assert (
        judge_accuracy(budget("unit>=base-0.01"), base[:least], base[:least]).verdict
        is Verdict.PROVED
    )
    short = judge_accuracy(budget("unit>=base-0.01"), base[: least - 1], base[: least - 1])
    assert short.verdict is Verdict.LIKELY
    assert short.needed == pytest.approx(least, rel=0.02)


def test_an_absolute_mean_and_one_where_lower_is_better() -> None:
    good = rows(400, 0.9)
    score = judge_accuracy(budget("unit>=0.85"), good, good)
    assert score.verdict is Verdict.PROVED
    assert 0.85 <= score.low < score.value
    assert judge_accuracy(budget("unit>=0.899"), good, good).verdict is Verdict.UNDECIDED
    score = judge_accuracy(budget("loss<=base+0.05"), good + 0.01, good)
    assert (score.verdict, score.low) == (Verdict.PROVED, -math.inf)
    assert score.value < score.high <= score.base + 0.05
    assert judge_accuracy(budget("loss<=base+0.05"), good + 0.06, good).verdict is Verdict.FAILS


def test_a_record_outside_its_bounds_is_named() -> None:
    base = rows(50, 0.8)
    wrong = base.copy()
    wrong[7] = 1.25
    with pytest.raises(BadData, match=r"gave 1.25, outside its bounds 0 and 1\n  fix"):
        judge_accuracy(budget("unit>=base-0.01"), wrong, base)


def test_a_function_may_ask_for_a_share() -> None:
    base = np.ones(100)
    cand = base.copy()
    cand[:4] = 0.5
    score = judge_accuracy(budget("kept>=0.8"), column(cand), column(base))
    assert (score.share, score.inside, score.verdict) == (0.9, 0.96, Verdict.PROVED)
    score = judge_accuracy(budget("kept>=base-0.1"), column(cand * 0.7), column(base * 0.7))
    assert (score.inside, score.verdict) == (0.96, Verdict.PROVED)
    spelled = 'function(path="accuracy_scores:plain", share=0.97)>=0.8'
    assert (
        judge_accuracy(Budget.parse(spelled), column(cand), column(base)).verdict is Verdict.FAILS
    )
    assert count_provable_samples(budget("kept>=0.8"), None) == 29


def test_a_figure_is_likely_at_best() -> None:
    counts = np.tile([1.0, 1.0, 1.0], (5000, 1))
    score = judge_accuracy(budget("f1>=base-0.01"), counts, counts)
    assert (score.verdict, score.needed) == (Verdict.LIKELY, None)
    assert "no number of samples" in explain_verdict(score)
    assert count_provable_samples(budget("f1>=base-0.01"), counts) is None


def test_odd_declarations_are_refused() -> None:
    metric = budget("odd>=0.5").metric
    with pytest.raises(BadSettings, match=r"share is 1\.5"):
        metric.kind()
    with pytest.raises(BadSettings, match=r"bounds are \(1, 0\)"):
        _ = metric.bounds
    for text in ("cosine(share=1)>=0.9", "snr(share=-0.1)>=30", "max-error(share=2)<=1"):
        with pytest.raises(BadSettings, match="share is"):
            Budget.parse(text)


def test_share_0_is_refused_where_a_proof_is_asked() -> None:
    with pytest.raises(BadSettings, match=r"proves 'snr\(share=0\)>=30'\n  fix: .*: snr>=30"):
        require_provable(Budget.parse("snr(share=0)>=30"))
    for text in ("snr>=30", "top1>=base-0.01", "cosine(share=0.5)>=0.9"):
        require_provable(Budget.parse(text))


@pytest.mark.parametrize(
    "text", ["snr(share=0)>=30", "cosine(output=x, share=0.9)>=0.999", "cosine>=0.999", "snr>=30"]
)
def test_a_share_is_spelled_as_it_is_read(text: str) -> None:
    assert str(Budget.parse(text)) == text


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["cosine>=0.9", "max-error<=0.1", "top1>=base-0.1", "unit>=base-0.1"]),
    st.lists(st.booleans(), min_size=1, max_size=120),
    st.booleans(),
    st.randoms(),
)
def test_the_bound_keeps_the_limit_just_where_it_is_proved(
    text: str, right: list[bool], grouped: bool, random: Random
) -> None:
    """And neither the order of rows nor one more loss makes a proof."""
    asked = budget(text) if text.startswith("unit") else Budget.parse(text)
    lower = not asked.metric.higher_is_better
    cand, base = np.array(right, float), np.ones(len(right))
    if lower:
        cand, base = 1 - cand, base * 0
    groups = [f"g{i // 3}" for i in range(len(right))] if grouped else None
    score = judge_accuracy(asked, column(cand), column(base), groups)
    limit = asked.bound(score.base)
    if score.verdict is not Verdict.FAILS:
        keeps = score.high <= limit + 1e-9 if lower else score.low >= limit - 1e-9
        assert keeps is (score.verdict is Verdict.PROVED)
    order = list(range(len(right)))
    random.shuffle(order)
    moved = [groups[i] for i in order] if groups else None
    if not text.startswith("unit") and not (grouped and text.startswith("top1")):
        again = judge_accuracy(asked, column(cand[order]), column(base[order]), moved)
        assert replace(again, low=score.low, high=score.high) == score
    worse = cand.copy()
    worse[order[0]] = 1.0 if lower else 0.0
    if judge_accuracy(asked, column(worse), column(base), groups).verdict is Verdict.PROVED:
        assert score.verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("samples", "text", "said"),
    [
        (60, "top1>=0.995", "60 scored samples cannot tell 0.005: one is 0.017"),
        (1, "agreement>=0.9", "1 scored sample cannot tell 0.1: one is 1"),
        (60, "cosine>=0.999", ""),
        (60, "top1>=base", ""),
        (60, "top1>=base-0.02", ""),
        (0, "top1>=base-0.02", ""),
    ],
)
def test_what_the_data_cannot_tell(samples: int, text: str, said: str) -> None:
    records = np.ones((max(samples, 1), 2))
    assert warn_coarse_budget(Budget.parse(text), samples, records) == said


def test_fractions_can_tell_more() -> None:
    assert warn_coarse_budget(budget("plain>=base-0.01"), 60, rows(60, 0.5)) == ""
    assert warn_coarse_budget(budget("plain>=base-0.01"), 60, column(np.ones(60))) != ""


def test_a_sentence_for_every_verdict() -> None:
    cand, base = flips(200, 5)
    assert explain_verdict(judge_accuracy(TOP1, cand, base)) == (
        "fails: on 200 samples top1 is 0.975 (5 lost, 0 won of 200 samples, exact); the budget "
        "requires that top1 falls by at most 0.01"
    )
    assert explain_verdict(judge_accuracy(TOP1, *flips(100, 0))).startswith(
        "undecided: top1 falls by at most 0.01 on 100 samples (0 lost, 0 won of 100 samples, "
        "exact); one just outside would look so in up to 37 % of cases, 1 plan looked at; "
    )
    likely = explain_verdict(judge_accuracy(TOP1, *flips(200, 0)))
    assert likely.startswith("likely, not proved: top1 falls by at most 0.01 on 200 samples ")
    assert likely.endswith("; proving it needs about 299 independent samples in all")
    assert explain_verdict(judge_accuracy(TOP1, *flips(9, 0), exact=True, snr_db=99.0)) == (
        "proved by construction: top1 falls by at most 0.01 (exact steps, outputs equal to 99 dB)"
    )
    good = column(np.full(80, 0.9995))
    assert explain_verdict(judge_accuracy(COSINE, good, good)) == (
        "proved: with 95 % confidence at least 95 % of inputs keep cosine 0.999 "
        "(80 of 80 samples inside)"
    )
    assert explain_verdict(replace(judge_accuracy(TOP1, cand, base), verdict=None)) == ""


def test_a_score_of_before_reads_as_it_was() -> None:
    old = {
        "metric": "cosine", "value": 0.9995, "base": 1.0, "low": 0.9993, "high": 0.9997,
        "samples": 200, "verdict": "likely", "needed": 300, "basis": "bootstrap over 200",
    }  # fmt: skip
    score = codec.decode(Score, old)
    assert (score.proved_on, score.share, score.inside, score.error) == (None, None, None, 0.05)
    assert explain_verdict(score).startswith(
        "likely, not proved: cosine is within the budget on 200 samples"
    )


def test_likely_is_held_against_the_plans_that_were_looked_at() -> None:
    """Of 30 plans that are outside one looks good by chance, so each needs a thirtieth of it."""
    score = judge_accuracy(TOP1, *flips(200, 0))
    assert (score.verdict, score.plans) == (Verdict.LIKELY, 1)
    assert score.chance == pytest.approx(0.99**200, abs=1e-3)
    assert decide_likely(score, 2).verdict is Verdict.UNDECIDED
    assert decide_likely(decide_likely(score, 2), 1).verdict is Verdict.LIKELY
    many = judge_accuracy(TOP1, *flips(600, 0), plans=30)
    assert many.verdict is Verdict.PROVED
    assert judge_accuracy(TOP1, *flips(600, 0), plans=30, proof=()).verdict is Verdict.LIKELY
    assert judge_accuracy(TOP1, *flips(200, 0), plans=None).verdict is Verdict.UNDECIDED


def test_what_is_not_likely_by_samples_stays_what_it_is() -> None:
    proved = judge_accuracy(TOP1, *flips(299, 0))
    fails = judge_accuracy(TOP1, *flips(200, 5))
    exact = judge_accuracy(TOP1, *flips(9, 0), exact=True)
    for score in (proved, fails, exact, replace(exact, verdict=Verdict.UNDECIDED)):
        assert decide_likely(score, 1000) == score


def test_only_different_samples_make_it_likely() -> None:
    cand, base = flips(200, 0)
    assert judge_accuracy(TOP1, cand, base, counted=range(40)).verdict is Verdict.UNDECIDED
    assert judge_accuracy(TOP1, cand, base, counted=()).chance == 1
    good = column(np.full(200, 0.9999))
    for text in ("cosine>=0.999", "cosine(share=0)>=0.999"):
        score = judge_accuracy(Budget.parse(text), good, good, proof=(), counted=range(30))
        assert (score.verdict, score.chance) == (Verdict.UNDECIDED, pytest.approx(0.95**30))
        score = judge_accuracy(Budget.parse(text), good, good, proof=(), counted=range(100))
        assert score.verdict is Verdict.LIKELY


def test_a_baseline_that_knows_nothing_makes_nothing_likely_but_exact_steps() -> None:
    for exact, verdict in ((False, Verdict.UNDECIDED), (True, Verdict.LIKELY)):
        score = judge_accuracy(TOP1, *flips(2000, 0), exact=exact, provable=False)
        assert (score.verdict, score.chance) == (verdict, None)


def test_the_interval_of_the_change_holds_the_estimate() -> None:
    score = judge_accuracy(TOP1, *flips(1000, 8, won=3))
    assert score.change.value == pytest.approx(-0.005)
    assert -0.013 < score.change.least < -0.008 and 0 < score.change.most < 0.003
    share = judge_accuracy(COSINE, column([*[0.5] * 2, *[1.0] * 98]), column(np.ones(100)))
    assert share.change.value == 0.98
    assert 0.93 < share.change.least < 0.95 and 0.99 < share.change.most < 1


def test_an_undecided_plan_says_from_how_many_samples_it_would_be_likely() -> None:
    def judge(samples: int) -> Score:
        """Judge noise of about 65 dB, in powers of signal and noise."""
        noise = 10**-6.5 * np.linspace(0.9, 1.1, samples)
        powers, base = (
            np.stack([np.ones(samples), column], 1) for column in (noise, np.zeros(samples))
        )
        return judge_accuracy(Budget.parse("snr(share=0)>=30"), powers, base, plans=3)

    score = judge(24)
    assert score.verdict is Verdict.UNDECIDED and score.count_likely_samples(3) == 59
    assert "about 59 samples like these in all would make it likely; " in describe_needed(score)
    assert judge(58).verdict is Verdict.UNDECIDED
    assert judge(59).verdict is Verdict.LIKELY
    assert "likely" not in describe_needed(judge(59))


def test_a_plan_is_within_reach_if_all_samples_would_make_it_likely() -> None:
    seen = judge_accuracy(TOP1, *flips(100, 0), plans=None)
    assert not is_within_reach(seen, 150, 1)
    assert is_within_reach(seen, 200, 1)
    assert not is_within_reach(seen, 200, 2)
    assert is_within_reach(seen, 600, 30)
    assert not is_within_reach(judge_accuracy(TOP1, *flips(100, 9)), 10_000, 1)
