"""The paired accuracy test."""

from __future__ import annotations

import numpy as np
import pytest

from ortune.core.budget import Budget
from ortune.core.trial import Verdict
from ortune.measurement.accuracy import judge, wilson


def column(values: object) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(-1, 1)


def flips(n: int, lost: int, won: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """0/1 records: the candidate loses `lost` samples that the baseline has right."""
    base, cand = np.ones(n), np.ones(n)
    base[n - won :] = 0
    cand[:lost] = 0
    return column(cand), column(base)


def test_no_loss_on_few_samples_is_likely_and_says_how_many_prove_it() -> None:
    cand, base = flips(100, 0)
    score = judge(Budget.parse("top1>=base-0.01"), cand, base)
    assert score.verdict is Verdict.LIKELY
    assert score.needed is not None
    more_cand, more_base = flips(score.needed + 20, 0)
    assert judge(Budget.parse("top1>=base-0.01"), more_cand, more_base).verdict is Verdict.PROVED


def test_many_samples_prove_a_small_loss() -> None:
    cand, base = flips(9000, 20)
    score = judge(Budget.parse("top1>=base-0.01"), cand, base)
    assert score.verdict is Verdict.PROVED
    assert score.low < score.value < score.high


def test_a_loss_beyond_the_budget_fails() -> None:
    cand, base = flips(200, 5)
    assert judge(Budget.parse("top1>=base-0.01"), cand, base).verdict is Verdict.FAILS


def test_losses_and_gains_are_paired() -> None:
    cand, base = flips(1000, 8, won=8)
    score = judge(Budget.parse("top1>=base-0.01"), cand, base)
    assert score.value == score.base
    assert score.low == pytest.approx(score.base - 0.0098, abs=0.004)


def test_groups_count_once() -> None:
    cand, base = flips(2000, 4)
    groups = [f"photo{i // 100}" for i in range(2000)]
    alone = judge(Budget.parse("top1>=base-0.01"), cand, base)
    grouped = judge(Budget.parse("top1>=base-0.01"), cand, base, groups)
    assert alone.verdict is Verdict.PROVED
    assert grouped.verdict is Verdict.LIKELY


def test_real_valued_records_use_the_bootstrap() -> None:
    rng = np.random.default_rng(0)
    good = column(0.9995 + rng.normal(0, 1e-4, 200))
    score = judge(Budget.parse("cosine>=0.999"), good, column(np.ones(200)))
    assert score.verdict is Verdict.PROVED
    noise = rng.normal(0, 3e-3, 50)
    close = column(0.9991 + noise - noise.mean())
    assert (
        judge(Budget.parse("cosine>=0.999"), close, column(np.ones(50))).verdict is Verdict.LIKELY
    )


def test_nan_fails() -> None:
    cand, base = flips(10, 0)
    cand[3] = np.nan
    assert judge(Budget.parse("top1>=0.1"), cand, base).verdict is Verdict.FAILS


def test_worst_case_metrics_need_59_samples() -> None:
    few, many = column(np.full(10, 0.001)), column(np.full(59, 0.001))
    budget = Budget.parse("max-error<=0.01")
    assert judge(budget, few, few * 0).verdict is Verdict.LIKELY
    assert judge(budget, many, many * 0).verdict is Verdict.PROVED
    many[7] = 0.02
    assert judge(budget, many, many * 0).verdict is Verdict.FAILS


def test_exact_plans_with_equal_outputs_are_proved_by_few_samples() -> None:
    cand, base = flips(10, 0)
    budget = Budget.parse("top1>=base-0.01")
    assert judge(budget, cand, base, exact=True, snr_db=110.0).verdict is Verdict.PROVED
    assert judge(budget, cand, base, exact=True, snr_db=40.0).verdict is Verdict.LIKELY
    assert judge(budget, cand, base, exact=False, snr_db=110.0).verdict is Verdict.LIKELY


def test_wilson_against_a_worked_value() -> None:
    low, high = wilson(0.5, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-3), pytest.approx(0.5962, abs=1e-3))


def test_worst_case_metrics_count_groups_once() -> None:
    records = column(np.full(60, 0.001))
    groups = [f"photo{i // 10}" for i in range(60)]
    budget = Budget.parse("max-error<=0.01")
    assert judge(budget, records, records * 0, groups).verdict is Verdict.LIKELY


def test_equal_outputs_are_not_successes_of_a_yes_or_no() -> None:
    same = column(np.ones(50))
    assert judge(Budget.parse("cosine>=0.999"), same, same).verdict is Verdict.PROVED
    assert judge(Budget.parse("agreement>=0.99"), same, same).verdict is Verdict.LIKELY


def test_a_budget_is_met_exactly_in_spite_of_binary_fractions() -> None:
    assert Budget.parse("top1>=base-0.01").admits(0.875, 0.885)
    assert not Budget.parse("top1>=base-0.01").admits(0.870, 0.885)
