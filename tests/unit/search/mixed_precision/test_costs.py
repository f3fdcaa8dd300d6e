"""Losses add up over regions and say in which unit; times are parts of the profile."""

import math

import numpy as np
import pytest
from tests.unit.search.mixed_precision.models import transformer

from ortune.core.metric import Metric
from ortune.core.plugins.spelling import parse_plugin
from ortune.search.mixed_precision.costs import (
    NOISE,
    POOLED,
    Loss,
    mean_interval,
    time_gained,
    time_shares,
)
from ortune.search.mixed_precision.grouping import PrecisionRegion, find_regions

RECORDS = np.array([[1.0], [0.0], [1.0], [1.0]])
POWERS = np.array([[4.0, 1.0], [2.0, 0.0], [8.0, 2.0], [1.0, 0.5]])


@pytest.mark.parametrize("text", ["cosine", "snr", "agreement", "max-error"])
def test_what_moves_in_steps_or_does_not_add_up_is_taken_by_its_noise(text: str) -> None:
    loss = Loss.for_metric(parse_plugin(Metric, text))
    assert loss.unit == NOISE
    np.testing.assert_allclose(loss.per_sample(RECORDS, POWERS, RECORDS), [0.25, 0.0, 0.25, 0.5])


@pytest.mark.parametrize("text", ["top1", "snr(share=0)"])
def test_where_all_samples_count_together_a_quiet_one_does_not_outweigh_them(text: str) -> None:
    loss = Loss.for_metric(parse_plugin(Metric, text))
    assert loss.unit == POOLED
    found = loss.per_sample(RECORDS, POWERS, RECORDS)
    np.testing.assert_allclose(found, np.array([1.0, 0.0, 2.0, 0.5]) / 3.75)
    assert found.mean() == pytest.approx(POWERS[:, 1].sum() / POWERS[:, 0].sum())
    broken = np.array([[4.0, 1.0], [np.nan, np.nan]])
    assert loss.per_sample(broken, broken, broken).tolist() == [0.25, math.inf]
    assert loss.per_sample(broken[1:], broken[1:], broken[1:]).tolist() == [math.inf]


@pytest.mark.parametrize(("text", "better"), [("cosine", True), ("max-error", False)])
def test_a_mean_is_taken_in_its_own_unit(text: str, better: bool) -> None:
    loss = Loss(parse_plugin(Metric, text), in_metric_unit=True)
    assert loss.unit.endswith("lost, mean over samples")
    found = loss.per_sample(RECORDS, POWERS, np.ones((4, 1)))
    np.testing.assert_array_equal(found, [0, 1, 0, 0] if better else [0, -1, 0, 0])


def test_broken_outputs_cost_all_there_is() -> None:
    powers = np.array([[4.0, 1.0], [np.nan, np.nan]])
    found = Loss.for_metric(parse_plugin(Metric, "snr")).per_sample(powers, powers, powers)
    assert found.tolist() == [0.25, math.inf]
    assert mean_interval(found).value == math.inf


def test_the_interval_holds_the_mean_and_narrows_with_samples() -> None:
    draw = np.random.default_rng(0).exponential(1.0, 400)
    few, many = mean_interval(draw[:8]), mean_interval(draw)
    assert few.low <= few.value <= few.high
    assert many.low < float(draw.mean()) < many.high
    assert many.high - many.low < few.high - few.low


def test_one_sample_bounds_nothing() -> None:
    found = mean_interval(np.array([2.0]))
    assert (found.low, found.value, found.high) == (-math.inf, 2.0, math.inf)


def shares(
    blocks: int, by_operator: dict[str, float]
) -> tuple[list[PrecisionRegion], list[float]]:
    model = transformer(blocks)
    found = find_regions(model)
    return found, list(time_shares(model, found, by_operator).values())


PROFILE = {"MatMul": 0.7, "FusedMatMul": 0.1, "Softmax": 0.2}


def test_an_operators_time_is_divided_by_what_there_is_to_do() -> None:
    found, parts = shares(2, PROFILE)
    assert [len(one.layers) for one in found] == [3, 1, 1, 1] * 2
    assert parts[0] == pytest.approx(3 * parts[1])
    assert parts[2] == parts[3] == pytest.approx(2 * parts[1])
    assert parts[4:] == parts[:4], "equal structure, equal time"
    assert 0.5 < sum(parts) < 0.8, "products of activations take the rest"


@pytest.mark.parametrize("profile", [{}, {"Softmax": 0.2}])
def test_without_its_operator_in_the_profile_layers_share_all_of_the_time(
    profile: dict[str, float],
) -> None:
    _, parts = shares(1, profile)
    assert sum(parts) == pytest.approx(1.0)
    assert parts[0] == pytest.approx(3 * parts[1])


def test_a_region_saves_what_the_plan_does_of_its_part_and_never_more_than_it() -> None:
    found = time_gained(0.2, 0.4)
    assert (found.low, found.high) == (-0.2, 0.2)
    assert found.value == pytest.approx(0.12)
    assert time_gained(0.2, 3.0).value == -0.2
