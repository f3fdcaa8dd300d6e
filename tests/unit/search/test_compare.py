"""How one trial stands to another: by estimate, beyond noise, by a target."""

from dataclasses import replace

import pytest
from tests.unit.studies import CLEAN, baseline, trial

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.acceptance import FASTEST, Goal
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Interval, Plan, Status, Trial, Verdict
from ortune.search.compare import (
    has_proved_speedup,
    is_beaten,
    is_clearly_faster,
    is_estimated_faster,
    select_finalists,
    select_leaders,
    to_beat,
)

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
    assert select_leaders([quick, one, *left_out, two], FASTEST) == [two, one]
    assert select_leaders([baseline()], FASTEST) == []


def test_a_ratio_of_runs_that_waited_for_a_cpu_leads_nothing_else() -> None:
    """Read as 2.8 times as fast beside a neighbour, a setting put a sound 1.96 behind itself."""
    sound = measured(0.51, 0.3, 0.85, "11" * 8)
    waited = replace(measured(0.36, 0.0, 9.0, "22" * 8), waited=True)
    assert select_leaders([baseline(), waited, sound], FASTEST) == [sound, waited]
    assert to_beat([baseline(), waited, sound], FASTEST) == 0.51
    assert to_beat([baseline(), waited], FASTEST) == 0.36, "for want of more"


def of(steps: str, ratio: float, **settings: object) -> Trial:
    recipe = Recipe(steps, (parse_plugin(Quantizer, steps),))
    plan = Plan(recipe, replace(Cpu(threads=1), **settings))
    return trial(f"{steps} {settings}", plan, ratio)


def scored(name: str, score: float, part: str = "search", **more: object) -> Trial:
    found = replace(measured(0.5, 0.4, 0.6, name), part=part, **more)
    return replace(found, scores=(replace(found.scores[0], value=score),))


def test_the_second_finalist_is_of_other_steps_where_one_is_near() -> None:
    first, alike = of("int8-dynamic", 0.50), of("int8-dynamic", 0.51, arena=False)
    near, far = of("int8-weights", 0.524), of("int8-weights", 0.526)
    assert select_finalists([baseline(), first, alike, near], FASTEST) == [first, near, alike]
    assert select_finalists([baseline(), first, alike, far], FASTEST) == [first, alike, far]
    assert select_finalists([baseline(), first, alike], FASTEST) == [first, alike]
    edge, third = of("int8-weights", 1.05 * 0.50), of("int4-weights", 0.515)
    assert select_finalists([baseline(), first, alike, edge], FASTEST) == [first, alike, edge]
    assert select_finalists([baseline(), first, third, near], FASTEST) == [first, third, near]
    assert select_leaders([baseline(), first, alike, near], FASTEST) == [first, alike, near]


def test_one_on_another_backend_is_another() -> None:
    first, alike = of("int8-dynamic", 0.50), of("int8-dynamic", 0.51, arena=False)
    there = replace(first, key="there", plan=replace(first.plan, backend=Openvino(threads=1)))
    there = replace(there, ratio=Interval(0.52, 0.4, 0.6))
    assert select_finalists([baseline(), first, alike, there], FASTEST) == [first, there, alike]


def test_accuracy_that_is_only_likely_may_still_be_proved_with_all_samples() -> None:
    likely = replace(
        measured(0.5, 0.4, 0.6), scores=trial("a", PLAN, 1, verdict=Verdict.LIKELY).scores
    )
    assert select_leaders([baseline(), likely], FASTEST) == [likely]


@pytest.mark.parametrize(
    ("value", "gains"), [(0.5, True), (0.989, True), (0.991, False), (1.0, False)]
)
def test_a_plan_is_quicker_from_one_percent_on(value: float, gains: bool) -> None:
    assert is_estimated_faster(measured(0.6 * value, 0.1, 0.9), measured(0.6, 0.1, 0.9)) is gains


def test_a_gain_of_exactly_one_percent_is_none() -> None:
    assert not is_estimated_faster(measured(0.99, 0.9, 1.1), measured(1.0, 0.9, 1.1))


@pytest.mark.parametrize(
    ("high", "low", "clear"), [(0.6, 0.7, True), (0.7, 0.6, False), (0.65, 0.65, False)]
)
def test_plans_are_apart_when_their_intervals_do_not_touch(
    high: float, low: float, clear: bool
) -> None:
    assert is_clearly_faster(measured(0.5, 0.45, high), measured(0.72, low, 0.8)) is clear


@pytest.mark.parametrize("judged", [is_estimated_faster, is_clearly_faster])
def test_what_was_not_timed_is_neither_quicker_nor_apart(judged: object) -> None:
    known = measured(0.5, 0.4, 0.6)
    for one, two in ((UNTIMED, known), (known, UNTIMED), (UNTIMED, UNTIMED)):
        assert judged(one, two) is False  # type: ignore[operator]


@pytest.mark.parametrize(("high", "there"), [(0.49, True), (0.5, True), (0.51, False)])
def test_a_target_is_reached_by_the_interval_not_by_the_estimate(high: float, there: bool) -> None:
    assert has_proved_speedup(measured(0.4, 0.3, high), 2.0) is there


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
    assert has_proved_speedup(measured(0.2, 0.1, 0.3), 2.0)
    assert not has_proved_speedup(replace(measured(0.2, 0.1, 0.3), **held_back), 2.0)  # type: ignore[arg-type]


SIZE = Goal("size")


def kept(key: str, value: float, low: float, high: float, size: int) -> Trial:
    return replace(measured(value, low, high, key * 8), size=size)


class TestWanted:
    quick, small = kept("11", 0.5, 0.4, 0.6, 4_000_000), kept("22", 1.02, 0.9, 1.1, 1_000_000)
    tied = tuple(kept(f"{n}3", 0.9 + n / 100, 0.8, 1.1, 1_001_000) for n in range(3))
    slow = kept("44", 1.2, 1.1, 1.3, 500_000)

    def test_by_size_what_may_not_be_slower_leads_the_smallest_first(self) -> None:
        every = [baseline(), self.quick, self.small, self.slow]
        assert select_leaders(every, SIZE) == [self.small, self.quick]
        assert select_leaders(every, FASTEST) == [self.quick]

    def test_two_of_one_size_at_most_are_finalists(self) -> None:
        every = [baseline(), self.quick, self.small, *self.tied]
        assert select_leaders(every, SIZE) == [*self.tied, self.small, self.quick]
        assert select_finalists(every, SIZE) == [*self.tied[:2], self.quick]
        assert (
            select_finalists(every, Goal())
            == [self.quick, *self.tied]
            == select_leaders(every, Goal())
        )

    def test_what_breaks_a_bound_does_not_lead(self) -> None:
        every = [baseline(), self.quick, *self.tied]
        assert select_leaders(every, Goal(max_size=2_000_000)) == list(self.tied)
        assert select_leaders(every, Goal(max_size=500_000)) == []

    def test_what_is_to_be_beaten(self) -> None:
        every = [baseline(), self.quick, self.small]
        assert to_beat(every, Goal()) == 0.5
        assert to_beat(every, SIZE) == to_beat(every, Goal("memory")) == 1.0
        assert to_beat(every, Goal(max_size=2_000_000)) == 1.0, "1.02 is no limit to beat"
        assert to_beat([baseline()], Goal()) == 1.0

    def test_what_cannot_win_beside_a_finalist_is_settled(self) -> None:
        near = kept("55", 0.55, 0.5, 0.65, 4_000_000)
        far = kept("66", 0.9, 0.8, 0.95, 4_000_000)
        assert is_beaten(self.quick, far, Goal()) and not is_beaten(self.quick, near, Goal())
        assert is_beaten(self.quick, far, SIZE), "as large and slower"
        assert is_beaten(self.small, self.quick, SIZE), "larger, however fast"
        less = replace(far, size=1_000_000)
        assert not is_beaten(self.quick, less, SIZE), "smaller, however slow"
