"""Time is attributed to patterns, and by pattern to each of its regions."""

from __future__ import annotations

import math

import pytest
from tests.unit.regions.models import transformer

from ortune.core.trial import Interval
from ortune.regions.forms import weighted
from ortune.regions.gains import patterns

SHARES = {"MatMul": 0.7, "FusedMatMul": 0.1, "Softmax": 0.2}


@pytest.mark.parametrize("blocks", [1, 12])
def test_twelve_blocks_have_the_patterns_of_one(blocks: int) -> None:
    model = transformer(blocks)
    found = patterns(model, weighted(model), SHARES)
    assert len(found) == 4
    assert [len(one.regions) for one in found] == [blocks] * 4


def test_an_operators_time_is_divided_by_what_there_is_to_do() -> None:
    model = transformer(2)
    found = patterns(model, weighted(model), SHARES)
    assert [len(one.regions[0].layers) for one in found] == [3, 1, 1, 1]
    assert found[0].share == pytest.approx(1.5 * found[1].share, rel=1e-6)
    assert found[1].share == pytest.approx(2 * found[3].share, rel=1e-6)
    assert 0.5 < sum(one.share for one in found) < 0.8
    assert not any(one.little for one in found)


def test_what_takes_little_is_not_timed_and_says_at_most_how_much() -> None:
    model = transformer(1)
    found = patterns(model, weighted(model), {"MatMul": 0.02, "Softmax": 0.98})
    assert [one.little for one in found] == [True] * 4
    gain = found[0].untimed(0.4)
    assert not gain.timed
    assert gain.gained.low == -found[0].share
    assert gain.gained.high == found[0].share
    assert gain.gained.value == pytest.approx(0.6 * found[0].share)


def test_without_a_profile_all_are_timed() -> None:
    model = transformer(1)
    found = patterns(model, weighted(model), {})
    assert all(math.isnan(one.share) and not one.little for one in found)


def test_a_region_saves_its_part_of_what_all_of_its_pattern_cost_in_float() -> None:
    model = transformer(2)
    one = patterns(model, weighted(model), SHARES)[0]
    gain = one.gain(0.5, Interval(1.4, 1.2, 1.6))
    assert gain.gained.value == pytest.approx(0.1)
    assert gain.gained.low == pytest.approx(0.05)
    assert gain.gained.high == pytest.approx(0.15)
    worthless = one.gain(0.5, Interval(0.9, 0.8, 1.0))
    assert worthless.gained.value < 0


def test_a_comparison_that_tells_less_than_the_profile_is_not_used() -> None:
    model = transformer(2)
    one = patterns(model, weighted(model), SHARES)[0]
    found = one.gain(0.5, Interval(1.4, 0.1, 9.0))
    assert found == one.untimed(0.5)
    unknown = patterns(model, weighted(model), {})[0]
    assert unknown.gain(0.5, Interval(1.4, 0.1, 9.0)).timed


def test_what_no_comparison_can_tell_is_known_before_it_is_timed() -> None:
    model = transformer(2)
    one = patterns(model, weighted(model), SHARES)[0]
    for half in (0.9 * one.share, 1.1 * one.share):
        compared = Interval(0.5, 0.5 - half, 0.5 + half)
        assert one.blurred(compared) is (half > one.share)
        given_back = Interval(1.0, 1.0 - 2 * half, 1.0 + 2 * half)
        assert one.gain(0.5, given_back).timed is not one.blurred(compared), "they agree"
    unknown = patterns(model, weighted(model), {})[0]
    assert not unknown.blurred(Interval(0.5, 0.1, 9.0)), "all that there is, without a profile"
