"""What paid before moves what is expected of plans, as far as it tells of this model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.search.test_adaptive import BF16, CPU, FACTS, SPACE, trial, view

from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.hardware.paid import NOTHING, Paid, PlanTally
from ortune.core.step import AS_IS
from ortune.core.trial import Plan, Proposal
from ortune.search.expectation import priors
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.features import latency_features
from ortune.search.expectation.priors import model_kind, transfer_observations
from ortune.search.expectation.surrogate import Normal
from ortune.search.warm_start import count_timings, merge_records

EVERY = [
    Plan(recipe, backend)
    for target in SPACE.targets
    for backend in SPACE.list_variants(target)
    for recipe in SPACE.list_recipes(target, backend)
]
ONE = PlanTally(model_kind(FACTS), {"hint:cpu": 1.0})
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
        paid = merge_records(paid, count_timings(trials, facts))
    return paid


def expected(one: Plan, paid: Paid = NOTHING) -> Normal:
    return Expectations(view(paid=paid)).estimate_plans([one])[0].latency


def deviation(paid: Paid, facts: Facts = FACTS) -> float:
    """Return how far a model of these facts may lie from the only tally."""
    (found,) = transfer_observations(paid, facts)
    return (
        found.features["elsewhere:hint:cpu"]
        * priors.load_fitted_numbers().feature_prior("latency", "elsewhere:").sd
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"Conv": 20, "Gemm": 1, "Relu": 20}, "conv"),
        ({"MatMul": 72, "Softmax": 12, "Gemm": 1}, "attention"),
        ({"MatMul": 4, "Softmax": 1}, "matmul"),
        ({"Conv": 3, "MatMul": 3}, "mixed"),
        ({"Conv": 3, "LSTM": 1}, "recurrent"),
        ({"Relu": 3}, "other"),
        ({"QLinearConv": 9}, "quantized"),
    ],
)
def test_a_model_is_called_by_most_of_its_layers(given: dict[str, int], found: str) -> None:
    assert model_kind(replace(FACTS, ops=given))[0] == found


@pytest.mark.parametrize(
    ("parameters", "found"),
    [(0, "small"), (999_999, "small"), (1_000_000, "medium"), (30_000_000, "large")],
)
def test_sizes_go_by_weights(parameters: int, found: str) -> None:
    assert model_kind(replace(FACTS, parameters=parameters))[1] == found


@pytest.mark.parametrize("one", EVERY, ids=str)
def test_a_record_has_the_features_of_the_plans_it_is_of(one: Plan) -> None:
    (found,) = transfer_observations(known(0.2, one), FACTS)
    own = {name: w for name, w in latency_features(one).items() if not name.startswith("plan:")}
    assert {n: w for n, w in found.features.items() if not n.startswith("elsewhere:")} == own
    assert found.value == pytest.approx(math.log(0.2))


@given(st.integers(1, 30), st.floats(0, 5))
def test_more_searches_tell_more_closely(count: int, squares: float) -> None:
    fewer, more = (replace(ONE, searches=n, squares=squares) for n in (count, count + 1))
    assert 0 < deviation(Paid((more,))) < deviation(Paid((fewer,)))


def test_one_search_says_little_and_many_alike_a_lot() -> None:
    usual = priors.load_fitted_numbers().numbers["between models"]
    assert deviation(Paid((ONE,))) == pytest.approx(usual * math.sqrt(2))
    assert deviation(Paid((replace(ONE, searches=20),))) < 0.1


def test_models_of_another_size_say_less_and_of_another_kind_no_more() -> None:
    others = [FACTS, replace(FACTS, parameters=10**9), replace(FACTS, ops={"Conv": 9})]
    alike, large, conv = (deviation(Paid((ONE,)), one) for one in others)
    assert alike < large and alike <= conv


def test_what_paid_is_expected_to_pay_again_the_more_often_the_more() -> None:
    before = expected(plan(BF16))
    once, often = (
        expected(plan(BF16), known(0.2, plan(BF16), plan(CPU, "int8"), times=n)) for n in (1, 12)
    )
    assert math.log(0.2) - 0.1 < often.mean < once.mean < before.mean
    assert often.sd < once.sd < before.sd


def test_many_plans_of_one_search_count_little_more_than_one() -> None:
    same = [one for one in EVERY if one.backend == BF16]
    paid = known(0.2, *same)
    assert len(paid.tallies) > 5
    assert expected(plan(BF16), paid).sd > 0.15


def test_one_measurement_in_this_run_outweighs_the_record() -> None:
    paid = known(0.2, plan(BF16), times=12)
    made = trial(Proposal(plan(BF16), "screen", effort="screen"), 0.95, effort="screen")
    found = Expectations(view([made], paid=paid)).estimate_plans([plan(BF16)])[0].latency
    assert math.log(0.75) < found.mean < math.log(0.95)


def test_the_profile_says_which_layers_are_worth_it() -> None:
    found = [
        Expectations(view(by_operator=shares))
        .estimate_plans([plan(CPU, "int8-dynamic")])[0]
        .latency.mean
        for shares in ({"MatMul": 0.9, "Gelu": 0.1}, {}, {"MatMul": 0.1, "Gelu": 0.9})
    ]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]
