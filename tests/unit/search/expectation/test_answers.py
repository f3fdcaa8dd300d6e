"""What is expected of a recipe's accuracy where it runs, once it was scored somewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.search.test_adaptive import BF16, CPU, OPENVINO, trial, view

from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan, Proposal, Trial
from ortune.search.expectation.expectations import Expectations

DYNAMIC = Recipe("int8-dynamic", (parse_plugin(Quantizer, "int8-dynamic"),))
ROUNDED = Recipe("int8-weights", (parse_plugin(Quantizer, "int8-weights"),))
SETTINGS = replace(CPU, arena=False)


def ran(recipe: Recipe, backend: Backend, lost: float, ratio: float = 0.5) -> Trial:
    return trial(Proposal(Plan(recipe, backend), "search"), ratio, lost)


def keeps(recipe: Recipe, backend: Backend, *trials: Trial) -> float:
    return Expectations(view(trials)).estimate_plans([Plan(recipe, backend)])[0].keeps


@pytest.mark.parametrize(("lost", "low", "high"), [(1.1, 0.0, 0.01), (0.9, 0.97, 1.0)])
def test_settings_change_no_answer(lost: float, low: float, high: float) -> None:
    assert low <= keeps(DYNAMIC, SETTINGS, ran(DYNAMIC, CPU, lost)) <= high


def test_the_best_of_its_answers_under_a_hint_counts() -> None:
    both = ran(DYNAMIC, CPU, 1.1), ran(DYNAMIC, replace(CPU, level="basic"), 0.9)
    assert keeps(DYNAMIC, SETTINGS, *both) > 0.97


@pytest.mark.parametrize("backend", [OPENVINO, BF16])
def test_under_another_hint_they_may_differ(backend: Backend) -> None:
    assert 0.02 < keeps(DYNAMIC, backend, ran(DYNAMIC, CPU, 1.1)) < 0.9


def test_another_recipe_has_its_own() -> None:
    assert keeps(ROUNDED, SETTINGS, ran(DYNAMIC, CPU, 1.1)) > 0.5
