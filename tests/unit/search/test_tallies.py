"""What is counted of searches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortune_toys.backends.slowed import Slowed

from ortune.backends.cpu import Cpu
from ortune.core.facts import Facts
from ortune.core.hardware.paid import NOTHING, Paid, PlanTally
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe
from ortune.core.trial import Interval, Plan, Status, Trial
from ortune.search.expectation.features import latency_features
from ortune.search.warm_start import COUNT, MOST, count_timings, is_builtin, merge_records

FACTS = Facts({"Conv": 9}, 9, 5_000_000, 1, {}, 17, 8, (), ())


def quantized(step: str = "int8-static", **backend: int) -> Plan:
    found = parse_plugin(Quantizer, step)  # type: ignore[type-abstract]
    return Plan(Recipe(step, (found,)), Cpu(**backend))


def trial(key: str, plan: Plan, ratio: float | None) -> Trial:
    interval = None if ratio is None else Interval(ratio, ratio, ratio)
    return Trial(key, plan, "search", Status.OK if ratio else Status.FAILED, interval)


FIRST = latency_features(quantized(), public=True)
ONE = PlanTally(("conv", "medium"), FIRST)


def test_a_search_counts_once_a_kind_of_plan() -> None:
    original = replace(trial("o", Plan(AS_IS, Cpu()), 1.0), stage="baseline")
    unchanged = replace(trial("u", quantized("int8-dynamic"), None), status=Status.UNCHANGED)
    two = [
        trial("a", quantized("int8-static(exclude=[one])"), 0.25),
        trial("b", quantized("int8-static(exclude=[two])"), 0.5),
    ]
    (found,) = count_timings([original, unchanged, *two], FACTS).tallies
    assert found.model == ("conv", "medium")
    assert found.features == {**FIRST, "option:int8-static.exclude": 1.0}
    assert (found.searches, found.squares) == (1, 0.0)
    assert found.mean == pytest.approx((math.log(0.25) + math.log(0.5)) / 2)


def test_a_finalists_trial_counts_in_place_of_the_searchs() -> None:
    final = replace(trial("a", quantized(), 0.5), part="final")
    (found,) = count_timings([trial("a", quantized(), 0.4), final], FACTS).tallies
    assert found.mean == pytest.approx(math.log(0.5))


def test_what_failed_is_not_counted() -> None:
    assert count_timings([trial("a", quantized(), None)], FACTS) == NOTHING


def test_plugins_of_others_are_not_counted() -> None:
    assert (
        count_timings([trial("a", replace(quantized(), backend=Slowed()), 0.5)], FACTS) == NOTHING
    )
    assert is_builtin(Cpu(), *quantized("requantize(step=int8-dynamic)").recipe.steps)
    assert not is_builtin(Cpu(), Slowed())


def test_what_was_timed_last_comes_first_and_the_oldest_is_forgotten() -> None:
    plans = [quantized(threads=n) for n in range(1, MOST + 1)]
    old = count_timings([trial(str(n), plan, 0.5) for n, plan in enumerate(plans)], FACTS)
    assert len(old.tallies) == MOST
    assert old.tallies[0].features == latency_features(plans[-1], public=True)
    new = merge_records(old, count_timings([trial("new", quantized(), 0.5)], FACTS))
    assert len(new.tallies) == MOST
    assert new.tallies[0].features == FIRST
    assert new.tallies[-1].features == latency_features(plans[1], public=True)


@given(st.lists(st.floats(-4, 4), min_size=1, max_size=COUNT - 1))
def test_joined_searches_have_their_mean_and_spread(values: list[float]) -> None:
    paid = NOTHING
    for value in values:
        paid = merge_records(paid, Paid((replace(ONE, mean=value),)))
    (found,) = paid.tallies
    mean = math.fsum(values) / len(values)
    assert found.searches == len(values)
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.squares == pytest.approx(sum((v - mean) ** 2 for v in values), abs=1e-9)


def test_old_searches_count_less_and_less() -> None:
    paid = NOTHING
    for value in [0.0] * COUNT + [-1.0] * 3 * COUNT:
        paid = merge_records(paid, Paid((replace(ONE, mean=value),)))
    (found,) = paid.tallies
    assert found.searches == COUNT / 2
    assert -1 < found.mean < -0.95
