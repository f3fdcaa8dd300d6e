"""A linear model with Gaussian priors: what records say of features that they share."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.search.test_adaptive import BF16, CPU, OPENVINO, trial, view

from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan, Proposal, Trial
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.surrogate import Normal, Observation, Surrogate

UNIT = Normal(0.0, 1.0)
TABLE = np.linspace(-6, 6, 20_001)
ERRORS = np.array([math.erf(t) for t in TABLE])


def unit(name: str) -> Normal:
    return UNIT


def test_without_records_the_prior_is_expected() -> None:
    priors = {"a": Normal(1.0, 0.3), "b": Normal(-2.0, 0.4)}
    (found,) = Surrogate(priors.__getitem__, []).predict_plans([{"a": 1.0, "b": 0.5}])
    assert found.mean == pytest.approx(0.0)
    assert found.sd == pytest.approx(math.hypot(0.3, 0.2))


def test_one_record_moves_what_it_shares_by_the_share_of_its_variance() -> None:
    found = Surrogate(unit, [Observation({"a": 1.0, "b": 1.0}, 4.0, 1.0)])
    a, c = found.predict_plans([{"a": 1.0}, {"c": 1.0}])
    assert a.mean == pytest.approx(4.0 / 3)
    assert a.sd == pytest.approx(math.sqrt(1 - 1 / 3))
    assert (c.mean, c.sd) == (0.0, 1.0)


@given(st.integers(0, 2**32 - 1))
def test_it_is_the_regression_with_priors_of_the_textbook(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names, rows = "abcd", rng.normal(size=(6, 4))
    values, noise = rng.normal(size=6), rng.uniform(0.1, 1, 6)
    records = [
        Observation(dict(zip(names, row, strict=True)), float(v), float(n))
        for row, v, n in zip(rows, values, noise, strict=True)
    ]
    precision = rows.T @ np.diag(1 / noise**2) @ rows + np.eye(4)
    weights = np.linalg.solve(precision, rows.T @ (values / noise**2))
    asked = rng.normal(size=4)
    (found,) = Surrogate(unit, records).predict_plans([dict(zip(names, asked, strict=True))])
    assert found.mean == pytest.approx(float(asked @ weights), abs=1e-6)
    assert found.sd == pytest.approx(
        math.sqrt(float(asked @ np.linalg.solve(precision, asked))), abs=1e-6
    )


@given(st.floats(-2, 2), st.floats(0.01, 2), st.floats(-2, 2))
def test_the_gain_is_the_mean_of_what_falls_below_the_best(
    mean: float, sd: float, best: float
) -> None:
    grid = (np.arange(4_000) + 0.5) / 4_000
    draws = mean + sd * np.sqrt(2) * _inverse_error(2 * grid - 1)
    expected = float(np.maximum(0, best - draws).mean())
    assert Normal(mean, sd).improvement_over(best) == pytest.approx(
        expected, abs=2e-3 * max(1.0, sd)
    )
    assert Normal(mean, sd).probability_below(best) == pytest.approx(
        float((draws < best).mean()), abs=2e-3
    )


def test_what_is_known_gains_what_it_is_below_the_best() -> None:
    assert Normal(-1.0, 0.0).improvement_over(-0.5) == 0.5
    assert Normal(-0.5, 0.0).improvement_over(-1.0) == 0.0
    assert Normal(-1.0, 0.0).probability_below(-0.5) == 1.0


def _inverse_error(x: np.ndarray) -> np.ndarray:
    """Return the inverse of erf from a table."""
    return np.interp(x, ERRORS, TABLE)


# What is expected of a recipe's accuracy where it runs, once it was scored somewhere.


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
