"""How near a score lies to its budget."""

import math

import pytest

from ortune.core.budget import Budget
from ortune.core.trial import Score, Verdict
from ortune.search.expectation.expectations import (
    LEAST,
    MOST,
    budget_utilization,
    combine_losses,
    log_budget_utilization,
    log_utilization_sd,
    utilization_from_log,
)


def scored(value: float, base: float = 1.0, verdict: Verdict | None = Verdict.LIKELY) -> Score:
    return Score("any", value, base, value, value, 10, verdict)


@pytest.mark.parametrize(
    ("budget", "value", "base", "verdict", "expected"),
    [
        ("top1>=base-0.02", 0.89, 0.9, Verdict.LIKELY, math.log(0.5)),
        ("top1>=base-0.02", 0.86, 0.9, Verdict.FAILS, math.log(2)),
        ("cosine>=0.99", 0.98, 1.0, Verdict.FAILS, math.log(2)),
        ("max-error<=0.1", 0.05, 0.0, Verdict.LIKELY, math.log(0.5)),
        ("snr(share=0)>=30", 20.0, 200.0, Verdict.FAILS, math.log(10) / 2),
        ("snr(share=0)>=30", 40.0, 200.0, Verdict.LIKELY, -math.log(10) / 2),
        ("snr(share=0)>=30", 200.0, 200.0, Verdict.PROVED, LEAST),
        ("snr(share=0)>=30", -1e5, 200.0, Verdict.FAILS, MOST),
        ("top1>=base-0.02", 0.95, 0.9, Verdict.PROVED, LEAST),
        ("top1>=base", 0.8, 0.9, Verdict.FAILS, MOST),
    ],
)
def test_it_is_the_logarithm_of_lost_over_allowed(
    budget: str, value: float, base: float, verdict: Verdict, expected: float
) -> None:
    found = log_budget_utilization(scored(value, base, verdict), Budget.parse(budget))
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_verdict_decides_the_sign() -> None:
    budget = Budget.parse("cosine>=0.99")
    assert log_budget_utilization(scored(0.999, verdict=Verdict.FAILS), budget) == 0.05
    assert log_budget_utilization(scored(0.98, verdict=Verdict.LIKELY), budget) == -0.05


def test_what_cannot_be_scored_is_far_outside() -> None:
    found = log_budget_utilization(
        scored(math.nan, verdict=Verdict.FAILS), Budget.parse("cosine>=0.99")
    )
    assert found == MOST


@pytest.mark.parametrize(
    ("budget", "value", "base", "verdict", "expected"),
    [
        ("top1>=base-0.02", 0.89, 0.9, Verdict.LIKELY, 0.5),
        ("top1>=base-0.02", 0.86, 0.9, Verdict.FAILS, 2.0),
        ("max-error<=0.1", 0.05, 0.0, Verdict.LIKELY, 0.5),
        ("snr(share=0)>=30", 20.0, 200.0, Verdict.FAILS, 10.0),
        ("snr(share=0)>=30", 40.0, 200.0, Verdict.LIKELY, 0.1),
        ("snr(share=0)>=30", -1e5, 200.0, Verdict.FAILS, math.inf),
        ("top1>=base-0.02", 0.1, 0.9, Verdict.FAILS, 40.0),
        ("top1>=base-0.02", 0.95, 0.9, Verdict.PROVED, 0.0),
        ("top1>=base", 0.8, 0.9, Verdict.FAILS, math.inf),
        ("cosine>=0.99", 0.999, 1.0, Verdict.FAILS, 1.05),
        ("cosine>=0.99", 0.98, 1.0, Verdict.LIKELY, 0.95),
    ],
)
def test_losses_are_counted_so_that_they_add_up(
    budget: str, value: float, base: float, verdict: Verdict, expected: float
) -> None:
    found = budget_utilization(scored(value, base, verdict), Budget.parse(budget))
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("budget", "value", "base"),
    [("snr(share=0)>=30", 27.0, 200.0), ("max-error<=0.1", 0.3, 0.0), ("cosine>=0.99", 0.98, 1.0)],
)
def test_an_expected_strain_is_as_much_lost_as_a_score_of_it(
    budget: str, value: float, base: float
) -> None:
    score, limit = scored(value, base, Verdict.FAILS), Budget.parse(budget)
    assert utilization_from_log(log_budget_utilization(score, limit), limit) == pytest.approx(
        budget_utilization(score, limit)
    )


def test_what_cannot_be_scored_loses_nobody_knows_what() -> None:
    found = budget_utilization(
        scored(math.nan, verdict=Verdict.FAILS), Budget.parse("cosine>=0.99")
    )
    assert math.isnan(found)


def test_losses_add_up() -> None:
    assert combine_losses(math.log(0.5), math.log(0.25)) == pytest.approx(math.log(0.75))
    assert combine_losses(math.log(0.25), math.log(0.5)) == pytest.approx(math.log(0.75))


@pytest.mark.parametrize(
    ("budget", "value", "base", "expected"),
    [
        ("top1>=base-0.1", 0.6, 0.9, math.log1p(math.sqrt(3) / 3)),
        ("top1>=base-0.2", 0.9, 0.9, math.log1p(1 / 2)),
        ("top1>=base-0.2", 0.8, 0.9, math.log1p(1 / 2)),
        ("top1>=base-0.3", 1.0, 0.8, math.log1p(math.sqrt(2) / 3)),
        ("top1>=base", 0.9, 0.9, 0.0),
        ("cosine>=0.99", 0.995, 1.0, 0.0),
        ("snr(share=0)>=30", 29.0, 200.0, 0.0),
    ],
)
def test_of_counted_answers_a_few_decide_by_chance(
    budget: str, value: float, base: float, expected: float
) -> None:
    found = log_utilization_sd(scored(value, base), Budget.parse(budget))
    assert found == pytest.approx(expected, abs=1e-9), "ten samples"
