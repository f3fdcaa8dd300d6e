"""What trying a plan is expected to take before anything like it was built."""

from dataclasses import replace

import pytest
from tests.unit.search.expectation.test_priors import timed
from tests.unit.search.test_adaptive import CPU, FACTS, trial, view

from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan, Proposal, Status
from ortune.search.expectation.priors import Durations, compute_work_units, count_build_work


def recipe(*steps: str) -> Recipe:
    return Recipe("given", tuple(parse_plugin(Quantizer, step) for step in steps))


@pytest.mark.parametrize(
    ("weights", "layers", "low", "high"),
    [(10.6e6, 48, 2, 25), (4.6e6, 50, 1, 14), (85e6, 48, 30, 250)],
    ids=["MiniLM", "EfficientNet-Lite0", "GPT-2"],
)
def test_rounding_with_a_search_takes_longer_the_wider_layers_are(
    weights: float, layers: int, low: float, high: float
) -> None:
    """On GPT-2 it took 105 of three minutes where 22 were expected, and the search ran over."""
    facts = replace(FACTS, ops={"MatMul": layers}, weight_bytes=round(4 * weights))
    takes = Durations(view(facts=facts))
    plain = takes.building_s(recipe("int8-static"))
    assert low < takes.building_s(recipe("adaptive-rounding", "int8-static")) - plain < high


def test_tables_are_not_rounded() -> None:
    large = replace(FACTS, weight_bytes=10**9)
    assert compute_work_units(large, 0.0)["products"] > 1
    assert compute_work_units(replace(large, table_bytes=10**9), 0.0)["products"] == 0


@pytest.mark.parametrize(
    ("steps", "inputs"),
    [
        ("int8-dynamic", 0),
        ("int8-dynamic(leave_worst=2)", 1),
        ("int4-weights", 0),
        ("int4-weights(method=gptq)", 1),
        ("adaptive-rounding int8-static", 0),
    ],
)
def test_steps_that_look_at_their_inputs_are_told_apart(steps: str, inputs: int) -> None:
    assert dict(count_build_work(recipe(*steps.split()))).get("inputs", 0) == inputs


def test_what_was_given_up_took_at_least_so_long() -> None:
    slow = recipe("adaptive-rounding", "int8-dynamic")
    alike = recipe("adaptive-rounding", "int8-dynamic(per_channel=false)")
    died = trial(Proposal(Plan(slow, CPU), "search"), 1.0, status=Status.FAILED, building=500.0)
    quick = replace(died, building=0.01)
    usual = Durations(view()).building_s(alike)
    assert Durations(view([died])).building_s(alike) == 500.0
    assert Durations(view([quick])).building_s(alike) == usual, "it says nothing of others"


def test_ranges_take_the_longer_the_longer_a_run_is() -> None:
    """Of a UNet that takes a third of a second they took longer than its whole trial was to."""
    slow, quick = (Durations(timed(ms, FACTS.weight_bytes)) for ms in (350.0, 1.0))
    more = slow.building_s(recipe("int8-static")) - quick.building_s(recipe("int8-static"))
    weights = slow.building_s(recipe("int8-weights")) - quick.building_s(recipe("int8-weights"))
    assert 5 < more < 30 and weights < more / 4
