"""The accuracy verdict, by the kind of the metric."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortune.core.budget import Budget
from ortune.core.trial import Verdict
from ortune.measurement.accuracy import judge, provable, unresolved

TOP1 = Budget.parse("top1>=base-0.01")
COSINE = Budget.parse("cosine>=0.999")


def column(values: object) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(-1, 1)


def flips(n: int, lost: int, won: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """0/1 records: the candidate loses `lost` samples that the baseline has right."""
    base, cand = np.ones(n), np.ones(n)
    base[n - won :] = 0
    cand[:lost] = 0
    return column(cand), column(base)


def test_299_unchanged_answers_prove_a_point_of_top1_and_298_do_not() -> None:
    score = judge(TOP1, *flips(298, 0))
    assert score.verdict is Verdict.LIKELY
    assert score.needed == provable(TOP1, None) == 299
    score = judge(TOP1, *flips(299, 0))
    assert (score.verdict, score.proved_on, score.needed) == (Verdict.PROVED, 299, None)


def test_many_samples_prove_a_small_loss() -> None:
    score = judge(TOP1, *flips(9000, 20))
    assert score.verdict is Verdict.PROVED
    assert score.base - 0.01 < score.low < score.value


def test_a_loss_beyond_the_budget_fails() -> None:
    assert judge(TOP1, *flips(200, 5)).verdict is Verdict.FAILS


def test_losses_and_gains_are_paired() -> None:
    score = judge(TOP1, *flips(1000, 8, won=8))
    assert score.value == score.base
    assert score.low == pytest.approx(score.base - 0.0075, abs=0.001)


def test_groups_count_once() -> None:
    groups = [f"photo{i // 100}" for i in range(2000)]
    assert judge(TOP1, *flips(2000, 4)).verdict is Verdict.PROVED
    assert judge(TOP1, *flips(2000, 4), groups).verdict is Verdict.LIKELY


@pytest.mark.parametrize(("n", "verdict"), [(58, Verdict.LIKELY), (59, Verdict.PROVED)])
def test_59_samples_prove_a_share(n: int, verdict: Verdict) -> None:
    score = judge(COSINE, column(np.full(n, 0.9995)), column(np.ones(n)))
    assert (score.verdict, score.inside, score.share) == (verdict, 1.0, 0.95)
    assert provable(COSINE, None) == 59


def test_nan_fails() -> None:
    cand, base = flips(10, 0)
    cand[3] = np.nan
    for budget in ("top1>=0.1", "cosine>=0.1", "max-error<=10", "cosine(share=0)>=0.1"):
        assert judge(Budget.parse(budget), cand, base).verdict is Verdict.FAILS


def test_exact_plans_with_equal_outputs_are_proved_by_few_samples() -> None:
    cand, base = flips(10, 0)
    proved = judge(TOP1, cand, base, exact=True, snr_db=110.0)
    assert (proved.verdict, proved.proved_on) == (Verdict.PROVED, None)
    assert judge(TOP1, cand, base, exact=True, snr_db=40.0).verdict is Verdict.LIKELY
    assert judge(TOP1, cand, base, exact=True, snr_db=math.nan).verdict is Verdict.LIKELY
    assert judge(TOP1, cand, base, exact=False, snr_db=110.0).verdict is Verdict.LIKELY


def test_a_budget_is_met_exactly_in_spite_of_binary_fractions() -> None:
    assert TOP1.admits(0.875, 0.885)
    assert not TOP1.admits(0.870, 0.885)


def test_a_budget_finer_than_the_data_is_said() -> None:
    assert unresolved(TOP1, 60) == "60 samples cannot tell 0.01: one is 0.017; 100 would"
    assert unresolved(TOP1, 100) == ""
