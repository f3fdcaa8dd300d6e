"""What misses the accuracy budget by little is named, with the budget that admits it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.budget import Budget
from ortune.core.near_miss import find_near_miss
from ortune.core.step import AS_IS
from ortune.core.trial import Plan, Score, Status, Trial, Verdict

PLAN = Plan(AS_IS, Cpu(threads=1))


def missed(ratio: float, metric: str, value: float, base: float, key: str = "m") -> Trial:
    score = Score(metric, value, base, value, 1.0, 64, Verdict.FAILS)
    trial = studies.trial(key, replace(PLAN, backend=Cpu(threads=2)), ratio)
    return replace(trial, status=Status.FAILS, scores=(score,))


@pytest.mark.parametrize(
    ("budget", "value", "base", "looser"),
    [
        ("cosine>=0.999", 0.9987, 1.0, "cosine>=0.999|0.99867"),
        ("cosine>=0.9999|0.999", 0.9987, 1.0, "cosine>=0.9999|0.999|0.99867"),
        ("top1>=base-0.01", 0.885, 0.9, "top1>=base-0.01|base-0.0155"),
        ("snr>=30", 27.2, 200.0, "snr>=30|26.9"),
    ],
)
def test_a_miss_by_a_hair_has_the_budget_that_admits_it(
    budget: str, value: float, base: float, looser: str
) -> None:
    asked = Budget.parse(budget)
    found = find_near_miss(
        [missed(0.2, str(asked.metric), value, base)], studies.baseline(), asked, PLAN
    )
    assert found is not None and str(found.looser) == looser
    assert found.looser.steps[-1].admits(value, base)
    assert not any(step.admits(value, base) for step in asked.steps)
    assert Budget.parse(looser) == found.looser
    assert "5.00x" in found.text and f"{value:.4g}" in found.text


def test_what_is_far_out_or_no_faster_is_none() -> None:
    budget, winner = Budget.parse("cosine>=0.99"), studies.trial("w", PLAN, 0.5)
    for ratio, value, near in ((0.3, 0.98, True), (0.49, 0.98, False), (0.3, 0.9, False)):
        trial = missed(ratio, "cosine", value, 1.0)
        assert (find_near_miss([trial], winner, budget, PLAN) is not None) is near
    nan = missed(0.3, "cosine", float("nan"), 1.0)
    assert find_near_miss([nan, winner], winner, budget, PLAN) is None


def test_of_several_the_fastest_is_told() -> None:
    budget = Budget.parse("cosine>=0.99")
    trials = [missed(ratio, "cosine", 0.985, 1.0, str(ratio)) for ratio in (0.4, 0.2, 0.3)]
    found = find_near_miss(trials, studies.baseline(), budget, PLAN)
    assert found is not None and found.trial.key == "0.2"
