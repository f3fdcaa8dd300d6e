"""The highest rate that keeps a limit, found on curves that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ortune.load_testing.goal.objective import STEP, requests, sustained

Curve = Callable[[float], float]


def queue(capacity: float, service: float = 1.0) -> Curve:
    """Return a percentile by rate that grows without bound towards a capacity."""

    def at(rate: float) -> float:
        return math.inf if rate >= capacity else service * (1 + rate / (capacity - rate))

    return at


def found(
    curve: Curve, limit: float, start: float, least: float = 0.1, most: float = 1e5
) -> tuple[float, list[float]]:
    """Return the rate and every rate that was asked about."""
    asked: list[float] = []
    steps = sustained(limit, start, least, most)
    rate = next(steps)
    while True:
        asked.append(rate)
        try:
            rate = steps.send(curve(rate))
        except StopIteration as done:
            return done.value, asked


@pytest.mark.parametrize("start", [1.0, 50.0, 74.0, 76.0, 99.0, 400.0])
def test_it_is_found_from_anywhere(start: float) -> None:
    rate, asked = found(queue(100.0), 4.0, start)  # 1 + r / (100 - r) = 4 at r = 75
    assert rate == pytest.approx(75, rel=0.02)
    assert len(asked) <= 14 and min(asked) >= 0.1


def test_near_the_last_answer_little_is_asked() -> None:
    for start in (72.0, 75.0, 78.0):
        assert len(found(queue(100.0), 4.0, start)[1]) <= 3


def test_what_keeps_it_at_no_rate_or_at_every_rate() -> None:
    assert found(lambda rate: 9.0, 4.0, 50.0, least=2.0)[0] == 2.0
    assert found(lambda rate: 1.0, 4.0, 50.0, most=300.0)[0] == 300.0
    assert found(lambda rate: 1.0, 4.0, 500.0, most=300.0)[1] == [300.0]


def test_a_wall_is_not_stepped_over() -> None:
    """Without an answer at all beyond it there is nothing to draw a line to."""
    rate, _ = found(lambda rate: 1.0 if rate < 60 else math.inf, 4.0, 50.0)
    assert 60 / STEP / 1.01 < rate < 60


def test_noise_ends_it_all_the_same() -> None:
    rng, curve = np.random.default_rng(0), queue(100.0)
    rates = []
    for _ in range(200):
        rate, asked = found(lambda rate: curve(rate) * rng.lognormal(0, 0.3), 4.0, 70.0)
        assert len(asked) < 30
        rates.append(rate)
    assert np.median(rates) == pytest.approx(75, rel=0.06)


def test_how_many_requests_tell_a_percentile() -> None:
    assert requests(99, 10) == 1150 and requests(99, 4) == 460
    assert requests(50, 10) == 100 and requests(99.9, 10) == 11_500
