"""What trying a plan is expected to take before anything like it was built."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.policies.test_adaptive import CPU, FACTS, trial, view
from tests.unit.search.expectation.test_priors import timed

from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan, Proposal, Status
from ortune.search.expectation.durations import Durations


def recipe(*steps: str) -> Recipe:
    return Recipe("given", tuple(parse(Quantizer, step) for step in steps))


def searching_s(weights: float, layers: int) -> float:
    """Return what rounding with a search adds to quantizing."""
    facts = replace(FACTS, ops={"MatMul": layers}, weight_bytes=round(4 * weights))
    takes = Durations(view(facts=facts))
    plain = takes.building_s(recipe("int8-static"))
    return takes.building_s(recipe("adaptive-rounding", "int8-static")) - plain


@pytest.mark.parametrize(
    ("weights", "layers", "low", "high"),
    [(10.6e6, 48, 10, 20), (4.6e6, 50, 8, 14), (85e6, 48, 100, 150)],
    ids=["MiniLM", "EfficientNet-Lite0", "GPT-2"],
)
def test_rounding_with_a_search_takes_longer_the_wider_layers_are(
    weights: float, layers: int, low: float, high: float
) -> None:
    """On GPT-2 it took 105 of three minutes where 22 were expected, and the search ran over."""
    assert low < searching_s(weights, layers) < high


def test_tables_are_not_rounded() -> None:
    tables = replace(FACTS, weight_bytes=FACTS.weight_bytes + 10**9, table_bytes=10**9)
    rounded = recipe("adaptive-rounding", "int8-static")
    with_tables, without = (Durations(view(facts=facts)) for facts in (tables, FACTS))
    through = 2 * 10**9 / 60e6  # both steps go through all weights
    more = with_tables.building_s(rounded) - without.building_s(rounded)
    assert more == pytest.approx(through)


def test_what_was_given_up_took_at_least_so_long() -> None:
    slow = recipe("adaptive-rounding", "int8-dynamic")
    alike = recipe("adaptive-rounding", "int8-dynamic(per_channel=false)")
    died = trial(Proposal(Plan(slow, CPU), "search"), 1.0, status=Status.FAILED, building=500.0)
    quick = replace(died, building=0.01)
    usual = Durations(view()).building_s(alike)
    assert Durations(view([died])).building_s(alike) == 500.0
    assert Durations(view([quick])).building_s(alike) == usual, "it says nothing of others"


def test_ranges_take_forty_runs_of_the_original() -> None:
    """Of a UNet that takes a third of a second they took longer than its whole trial was to."""
    slow, quick = timed(350.0, FACTS.weight_bytes), timed(1.0, FACTS.weight_bytes)
    for steps, seconds in (
        (("int8-static",), 40 * 0.349),
        (("bias-correction", "int8-static"), 40 * 0.349),
        (("int8-dynamic",), 0.0),
        (("int8-weights",), 0.0),
    ):
        more = Durations(slow).building_s(recipe(*steps)) - Durations(quick).building_s(
            recipe(*steps)
        )
        assert more == pytest.approx(seconds), steps
