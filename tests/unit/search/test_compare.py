"""How one trial stands to another: by estimate, beyond noise, by a target."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.studies import CLEAN, baseline, trial

from ortune.backends.cpu import Cpu
from ortune.core.trial import Interval, Plan, Status, Trial, Verdict
from ortune.search.compare import apart, faster, quicker, reaches

PLAN = Plan(CLEAN, Cpu(threads=1))


def measured(value: float, low: float, high: float, key: str = "aa11" * 4) -> Trial:
    return replace(trial(key, PLAN, 0.5), ratio=Interval(value, low, high))


UNTIMED = replace(measured(0.5, 0.4, 0.6), ratio=None)


def test_only_verified_plans_of_the_search_that_seem_faster_come_the_fastest_first() -> None:
    one, two = measured(0.8, 0.7, 1.2, "11" * 8), measured(0.5, 0.4, 0.6, "22" * 8)
    left_out = [
        replace(two, part="final"),
        replace(two, status=Status.SLOWER),
        replace(two, status=Status.FAILS),
        replace(two, scores=()),
        measured(1.0, 0.9, 1.1),
        UNTIMED,
    ]
    quick = replace(baseline(), ratio=Interval(0.9, 0.9, 0.9))
    assert faster([quick, one, *left_out, two]) == [two, one]
    assert faster([baseline()]) == []


def test_accuracy_that_is_only_likely_may_still_be_proved_with_all_samples() -> None:
    likely = replace(
        measured(0.5, 0.4, 0.6), scores=trial("a", PLAN, 1, verdict=Verdict.LIKELY).scores
    )
    assert faster([baseline(), likely]) == [likely]


@pytest.mark.parametrize(
    ("value", "gains"), [(0.5, True), (0.989, True), (0.991, False), (1.0, False)]
)
def test_a_plan_is_quicker_from_one_percent_on(value: float, gains: bool) -> None:
    assert quicker(measured(0.6 * value, 0.1, 0.9), measured(0.6, 0.1, 0.9)) is gains


def test_a_gain_of_exactly_one_percent_is_none() -> None:
    assert not quicker(measured(0.99, 0.9, 1.1), measured(1.0, 0.9, 1.1))


@pytest.mark.parametrize(
    ("high", "low", "clear"), [(0.6, 0.7, True), (0.7, 0.6, False), (0.65, 0.65, False)]
)
def test_plans_are_apart_when_their_intervals_do_not_touch(
    high: float, low: float, clear: bool
) -> None:
    assert apart(measured(0.5, 0.45, high), measured(0.72, low, 0.8)) is clear


@pytest.mark.parametrize("judged", [quicker, apart])
def test_what_was_not_timed_is_neither_quicker_nor_apart(judged: object) -> None:
    known = measured(0.5, 0.4, 0.6)
    for one, two in ((UNTIMED, known), (known, UNTIMED), (UNTIMED, UNTIMED)):
        assert judged(one, two) is False  # type: ignore[operator]


@pytest.mark.parametrize(("high", "there"), [(0.49, True), (0.5, True), (0.51, False)])
def test_a_target_is_reached_by_the_interval_not_by_the_estimate(high: float, there: bool) -> None:
    assert reaches(measured(0.4, 0.3, high), 2.0) is there


@pytest.mark.parametrize(
    "held_back",
    [
        {"status": Status.SLOWER},
        {"status": Status.FAILS},
        {"scores": ()},
        {"scores": trial("a", PLAN, 1, verdict=Verdict.LIKELY).scores},
        {"ratio": None},
    ],
)
def test_a_target_is_reached_only_by_a_proved_plan(held_back: dict[str, object]) -> None:
    assert reaches(measured(0.2, 0.1, 0.3), 2.0)
    assert not reaches(replace(measured(0.2, 0.1, 0.3), **held_back), 2.0)  # type: ignore[arg-type]
