"""Curves through what mixtures lost."""

from __future__ import annotations

import math

import pytest

from ortune.search.expectation.losses import LossCurve, curves

NAN = math.nan


def test_of_the_whole_alone_the_nearer_end_comes_first() -> None:
    near, far = LossCurve(1.0, 1.5), LossCurve(2.0, 1.5)
    assert curves([(1.0, 1.5)], 2.0, False) == [near, far]
    assert curves([(1.0, 1.5)], 2.0, True) == [far, near]
    assert curves([(1.0, 3.0)], 2.0, False) == [LossCurve(2.0, 3.0), LossCurve(1.0, 3.0)]
    for alone in (0.0, NAN, math.inf):
        assert curves([(1.0, 3.0)], alone, True) == [LossCurve(1.0, 3.0)]


def test_between_what_keeps_and_what_fails_it_goes_through_both() -> None:
    (found,) = curves([(4.0, 4.0), (1.0, 0.25), (0.5, 0.2)], 9.0, False)
    assert found.power == pytest.approx(2.0)
    assert (found.at(4.0), found.at(1.0)) == pytest.approx((4.0, 0.25))
    assert found.room(1.0) == pytest.approx(2.0)
    assert found.room(0.1) == 1.0


def test_of_failures_alone_it_goes_on_from_the_nearest() -> None:
    (found,) = curves([(9.0, 3.0), (4.0, 2.0), (1.0, 1.2)], 9.0, False)
    assert found.summed == 1.0
    assert found.power == 0.4
    (root,) = curves([(9.0, 3.0), (4.0, 2.0)], 9.0, False)
    assert root.room(1.0) == pytest.approx(1.0)


def test_what_the_sums_do_not_order_steps_back() -> None:
    (found,) = curves([(4.0, 4.0), (1.0, 1.5), (2.0, 0.5)], 9.0, False)
    assert found.room(0.9) < 1.0


def test_what_keeps_the_budget_keeps_it_again() -> None:
    (found,) = curves([(2.0, 0.95)], NAN, False)
    assert found.room(0.9) == 2.0
    (free,) = curves([(2.0, 0.0)], NAN, False)
    assert free.room(0.9) > 100
    assert free.at(0.0) == 0.0


def test_nothing_known_is_no_curve() -> None:
    assert curves([(0.0, 3.0)], 1.0, False) == []
    assert curves([(1.0, math.inf)], 1.0, False) == []
    assert curves([(1.0, NAN)], 1.0, False) == []
    assert curves([], 1.0, False) == []
