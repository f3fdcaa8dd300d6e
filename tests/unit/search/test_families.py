"""What is expected by other models orders plans; no family of plans is ruled out by it.

A record of other models, and of a busy machine, once expected static int8 to take seven times as
long: MobileNetV2 came back unchanged with most of its time left.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.search.driver import record
from tests.unit.search.scenarios import LSTM, Scenario, facts, on
from tests.unit.search.test_adaptive import trial, view

from ortune.core.trial import Proposal, Status, Trial
from ortune.search.adaptive import Adaptive
from ortune.search.expectation.features import plan_family
from ortune.search.expectation.priors import Priors
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View

ONE = "cpu(threads=1)"
MOBILENET = Scenario(
    facts(Conv=52, Clip=35, Add=10, GlobalAveragePool=1, Gemm=1),
    on=ONE,
    baseline=ONE,
    seconds=180.0,
    rules=(on("@", ratio=1.0, verdict="proved"), on("int8-static", ratio=0.554)),
)
CONV_LSTM = Scenario(
    LSTM,
    on=ONE,
    baseline=ONE,
    seconds=180.0,
    rules=(
        on("@", ratio=1.0, verdict="proved"),
        on("int8-dynamic", ratio=0.615),
        on(r"int8-static(\(.*\))?, int8-dynamic", ratio=0.525),
    ),
)
USED, POLLUTED = (0.6, 0.1), (7.0, 0.01)
"""What is expected of static int8, times the original's time, and the spread of its logarithm."""


def expect(monkeypatch: pytest.MonkeyPatch, static: tuple[float, float]) -> None:
    """Expect that of static int8, whatever the tables say."""
    usual, (times, sd) = Priors.latency_prior, static

    def latency_prior(self: Priors, feature: str) -> Normal:
        surely = Normal(math.log(times), sd)
        return surely if feature == "family:int8-static" else usual(self, feature)

    monkeypatch.setattr(Priors, "latency_prior", latency_prior)


@pytest.mark.parametrize("expected", [None, USED, POLLUTED], ids=["empty", "used", "polluted"])
@pytest.mark.parametrize(
    ("scenario", "winner"),
    [
        pytest.param(MOBILENET, r"int8-static", id="MobileNetV2"),
        pytest.param(CONV_LSTM, r"int8-static(\(.*\))?, int8-dynamic", id="LSTM"),
    ],
)
def test_what_is_expected_to_be_slow_is_tried_while_time_is_left(
    scenario: Scenario,
    winner: str,
    expected: tuple[float, float] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if expected is not None:
        expect(monkeypatch, expected)
    assert re.search(winner, record(scenario, tmp_path / "run")["best"])


def searched(left: float = 1e6, **outcome: Any) -> tuple[View, list[Trial]]:
    """Search where all plans take four times the original's time; return the last view."""
    trials: list[Trial] = []
    while (proposal := Adaptive().next(view(trials, left))) is not None:
        assert isinstance(proposal, Proposal)
        trials = [t for t in trials if t.plan != proposal.plan]
        trials.append(replace(trial(proposal, 4.0), **outcome))
        assert len(trials) < 300
    return view(trials, left), trials


def test_a_search_ends_when_every_family_has_a_trial() -> None:
    last, trials = searched()
    families = {plan_family(plan) for plan in last.space.all_plans}
    assert families == {plan_family(one.plan) for one in trials}
    assert len(trials) < len(last.space.all_plans)
    assert Adaptive().explain_untried(last).late == 0


def test_what_does_not_build_counts_as_tried_and_is_said() -> None:
    last, trials = searched(
        status=Status.FAILED, ratio=None, scores=(), why="no such layer", reproduce=""
    )
    assert {plan_family(plan) for plan in last.space.all_plans} > {
        plan_family(one.plan) for one in trials
    }
    untried = [
        one for one in Adaptive().explain_untried(last).untried if "int8-static" in one.plan
    ]
    assert untried and {one.why for one in untried} == {"could not be built: no such layer"}


def test_a_family_that_takes_far_longer_than_the_time_left_is_said_to() -> None:
    _, trials = searched()
    late = view(trials[:2], left=0.01)
    assert Adaptive().next(late) is None
    omissions = Adaptive().explain_untried(late)
    assert omissions.late >= len({plan_family(plan) for plan in late.space.all_plans}) - 3
    assert "out of time; no plan was tried of: " in omissions.notes[-1]
    assert "int8-static on cpu" in omissions.notes[-1]
