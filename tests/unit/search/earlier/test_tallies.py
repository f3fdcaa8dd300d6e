"""What is counted of searches, and what is told of features."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortune_toys.backends.slowed import Slowed

from ortune.backends.cpu import Cpu
from ortune.core.facts import Facts
from ortune.core.hardware.paid import NOTHING, Paid, PlanTally
from ortune.core.plugins.spelling import parse
from ortune.core.step import AS_IS, Edit, Quantizer, Recipe
from ortune.core.trial import Interval, Measurement, Plan, Score, Status, Trial, Verdict
from ortune.search.earlier.tallies import COUNT, MOST, evidence, joined, pooled, prior, tallied
from ortune.search.earlier.words import words

FACTS = Facts({"Conv": 9}, 9, 5_000_000, 1, {}, 17, 8, (), ())


def quantized(step: str = "int8-static", **backend: int) -> Plan:
    found = parse(Quantizer, step)  # type: ignore[type-abstract]
    return Plan(Recipe(step, (found,)), Cpu(**backend))


def trial(key: str, plan: Plan, ratio: float | None, verdict: Verdict | None = None) -> Trial:
    made = Trial(key, plan, "search", Status.OK if ratio else Status.FAILED, edits=(EDIT,))
    if ratio is None:
        return made
    score = Score("cosine", 1.0, 1.0, 1.0, 1.0, 9, verdict)
    measured = Measurement((), load_ns=200_000_000, first_ns=1, peak_rss=1)
    scores = (score,) if verdict else ()
    return replace(made, ratio=Interval(ratio, ratio, ratio), scores=scores, measurement=measured)


EDIT = Edit("int8-static", 3, seconds=1.5)
FIRST = words(quantized(), FACTS)


def test_a_search_counts_once_a_kind_of_plan() -> None:
    original = replace(trial("o", Plan(AS_IS, Cpu()), 1.0), stage="baseline")
    unchanged = replace(trial("u", quantized("int8-dynamic"), None), status=Status.UNCHANGED)
    two = [
        trial("a", quantized("int8-static(exclude=[one])"), 0.25, Verdict.FAILS),
        trial("b", quantized("int8-static(exclude=[two])"), 0.5, Verdict.LIKELY),
    ]
    (found,) = tallied([original, unchanged, *two], FACTS).tallies
    assert found.words == (*FIRST, "int8-static.exclude=1")
    assert (found.tried, found.failed, found.measured, found.scored, found.kept) == (1, 0, 1, 1, 1)
    assert found.mean == pytest.approx((math.log(0.25) + math.log(0.5)) / 2)
    assert (found.squares, found.build_s, found.load_s) == (0.0, 1.5, 0.2)


def test_a_finalists_trial_counts_in_place_of_the_searchs() -> None:
    search = trial("a", quantized(), 0.4, Verdict.LIKELY)
    final = replace(trial("a", quantized(), 0.5, Verdict.FAILS), part="final")
    (found,) = tallied([search, final], FACTS).tallies
    assert found.mean == pytest.approx(math.log(0.5))
    assert (found.scored, found.kept) == (1, 0)


def test_what_failed_has_no_ratio() -> None:
    (found,) = tallied([trial("a", quantized(), None)], FACTS).tallies
    assert (found.tried, found.failed, found.measured, found.scored) == (1, 1, 0, 0)
    assert prior(Paid((found,)), FIRST) is None
    assert evidence(Paid((found,)), FACTS) == ()


def test_plugins_of_others_are_not_counted() -> None:
    other = replace(quantized(), backend=Slowed())
    assert tallied([trial("a", other, 0.5)], FACTS) == NOTHING


def test_what_was_tried_last_comes_first_and_the_oldest_is_forgotten() -> None:
    plans = [quantized(threads=n) for n in range(1, MOST + 1)]
    old = tallied([trial(str(n), plan, 0.5) for n, plan in enumerate(plans)], FACTS)
    assert len(old.tallies) == MOST
    assert old.tallies[0].words == words(plans[-1], FACTS)
    new = joined(old, tallied([trial("new", quantized(), 0.5)], FACTS))
    assert len(new.tallies) == MOST
    assert new.tallies[0].words == FIRST
    assert new.tallies[-1].words == words(plans[1], FACTS)


@given(st.lists(st.floats(-4, 4), min_size=1, max_size=COUNT - 1))
def test_joined_searches_have_their_mean_and_spread(values: list[float]) -> None:
    paid = NOTHING
    for value in values:
        paid = joined(paid, Paid((PlanTally(FIRST, 1, measured=1, mean=value),)))
    (found,) = paid.tallies
    mean = math.fsum(values) / len(values)
    assert found.measured == len(values)
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.squares == pytest.approx(sum((v - mean) ** 2 for v in values), abs=1e-9)


def test_old_searches_count_less_and_less() -> None:
    paid = NOTHING
    for value in [0.0] * COUNT + [-1.0] * 3 * COUNT:
        one = PlanTally(FIRST, 1, measured=1, mean=value, scored=1, kept=int(value < 0))
        paid = joined(paid, Paid((one,)))
    (found,) = paid.tallies
    assert (found.tried, found.measured, found.scored) == (COUNT / 2,) * 3
    assert -1 < found.mean < -0.95
    assert COUNT / 2 - 2 < found.kept <= COUNT / 2


def test_features_choose_the_tallies_that_have_them_all() -> None:
    paid = tallied(
        [
            trial("a", quantized(), 0.5),
            trial("b", quantized(threads=1), 0.25),
            trial("c", quantized("int8-dynamic"), 0.8),
        ],
        FACTS,
    )
    both = prior(paid, ["model=conv|backend=cpu|recipe=int8-static"])
    assert both is not None
    assert both.searches == 2
    assert both.mean == pytest.approx((math.log(0.5) + math.log(0.25)) / 2)
    narrow = prior(paid, ["recipe=int8-static", "cpu.threads=1"])
    assert narrow is not None
    assert (narrow.searches, narrow.mean) == (1, pytest.approx(math.log(0.25)))
    assert prior(paid, ["recipe=int4-weights"]) is None
    assert prior(NOTHING, []) is None
    every = pooled(paid, [])
    assert every is not None
    assert (every.tried, every.words) == (3, ())
    assert [seen.searches for _, seen in evidence(paid, FACTS)] == [1, 1, 1]


@settings(max_examples=50)
@given(st.integers(1, 30), st.floats(0, 5))
def test_more_searches_tell_more_closely(count: int, squares: float) -> None:
    fewer = prior(Paid((PlanTally(FIRST, count, measured=count, squares=squares),)), FIRST)
    more = prior(Paid((PlanTally(FIRST, count + 1, measured=count + 1, squares=squares),)), FIRST)
    assert fewer is not None and more is not None
    assert 0 < more.sd < fewer.sd


def test_other_models_say_less() -> None:
    paid = tallied([trial("a", quantized(), 0.5)], FACTS)
    others = [FACTS, replace(FACTS, parameters=1), replace(FACTS, ops={"MatMul": 9})]
    deviations = []
    for facts in others:
        ((said, seen),) = evidence(paid, facts)
        assert (said, seen.mean) == (FIRST, pytest.approx(math.log(0.5)))
        deviations.append(seen.sd)
    assert deviations == sorted(deviations)
    assert deviations[0] < deviations[1] < deviations[2]


def test_one_search_says_little_and_many_alike_a_lot() -> None:
    one = prior(Paid((PlanTally(FIRST, 1, measured=1, mean=-1.0),)), FIRST)
    many = prior(Paid((PlanTally(FIRST, 20, measured=20, mean=-1.0),)), FIRST)
    assert one is not None and many is not None
    assert one.sd == pytest.approx(0.3 * math.sqrt(2))
    assert many.sd < 0.1
