"""What paid before moves what is expected of plans, as far as it tells of this model."""

from __future__ import annotations

import math

import pytest
from tests.unit.policies.test_adaptive import BF16, CPU, FACTS, OPENVINO, SPACE, trial, view

from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.hardware.paid import NOTHING, Paid
from ortune.core.step import AS_IS
from ortune.core.trial import Plan, Proposal
from ortune.search.earlier.tallies import joined, tallied
from ortune.search.earlier.words import words
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.features import latency_features, recorded_features
from ortune.search.expectation.surrogate import Normal

EVERY = [
    Plan(recipe, backend)
    for target in SPACE.targets
    for backend in SPACE.variants(target)
    for recipe in SPACE.recipes(target, backend)
]
CONV = Facts({"Conv": 50}, 50, 1, 80_000_000, {}, 17, 8, (), ())


def plan(backend: Backend, family: str = "") -> Plan:
    fit = [one for one in EVERY if one.backend == backend]
    if not family:
        return Plan(AS_IS, backend)
    return next(one for one in fit if one.recipe.quantizer and family in one.recipe.name)


def known(ratio: float, *plans: Plan, times: int = 1, facts: Facts = FACTS) -> Paid:
    paid = NOTHING
    for _ in range(times):
        trials = [trial(Proposal(one, "search"), ratio) for one in plans]
        paid = joined(paid, tallied(trials, facts))
    return paid


def expected(one: Plan, paid: Paid = NOTHING) -> Normal:
    return Expectations(view(paid=paid)).of([one])[0].latency


@pytest.mark.parametrize("one", EVERY, ids=str)
def test_a_record_has_the_features_of_the_plans_it_is_of(one: Plan) -> None:
    found, own = recorded_features(words(one, FACTS)), latency_features(one)
    assert {name: w for name, w in found.items() if not name.startswith("option:")} == {
        name: w for name, w in own.items() if not name.startswith(("option:", "plan:"))
    }
    assert len(found) == len(own) - 1


def test_what_paid_is_expected_to_pay_again_the_more_often_the_more() -> None:
    before = expected(plan(BF16))
    once, often = (
        expected(plan(BF16), known(0.2, plan(BF16), plan(CPU, "int8"), times=n)) for n in (1, 12)
    )
    assert math.log(0.2) - 0.1 < often.mean < once.mean < before.mean
    assert often.sd < once.sd < before.sd


def test_other_models_say_less() -> None:
    before = expected(plan(BF16)).mean
    own = expected(plan(BF16), known(0.2, plan(BF16))).mean
    other = expected(plan(BF16), known(0.2, plan(BF16), facts=CONV)).mean
    assert own < other < before


def test_many_plans_of_one_search_count_little_more_than_one() -> None:
    same = [one for one in EVERY if one.backend == BF16]
    paid = known(0.2, *same)
    assert len(paid.tallies) > 5
    assert expected(plan(BF16), paid).sd > 0.15


def test_one_measurement_in_this_run_outweighs_the_record() -> None:
    paid = known(0.2, plan(BF16), times=12)
    made = trial(Proposal(plan(BF16), "screen", effort="screen"), 0.95, effort="screen")
    found = Expectations(view([made], paid=paid)).of([plan(BF16)])[0].latency
    assert math.log(0.8) < found.mean < math.log(0.95)


def test_the_profile_says_which_layers_are_worth_it() -> None:
    found = [
        Expectations(view(by_operator=shares)).of([plan(CPU, "int8-dynamic")])[0].latency.mean
        for shares in ({"MatMul": 0.9, "Gelu": 0.1}, {}, {"MatMul": 0.1, "Gelu": 0.9})
    ]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]


def test_nothing_known_changes_nothing() -> None:
    assert expected(plan(OPENVINO)) == expected(plan(OPENVINO), NOTHING)
