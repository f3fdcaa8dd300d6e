"""The samples that costs are taken on stand for all of them, and the worst are among them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.regions.sampling import Subset, evenly, telling

LOSSES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


@given(LOSSES, st.integers(1, 40))
def test_no_more_are_drawn_than_asked_for_each_once_in_order(
    losses: list[float], count: int
) -> None:
    drawn = telling(np.array(losses), count)
    assert 1 <= len(drawn.places) <= min(count, len(losses))
    assert list(drawn.places) == sorted(set(drawn.places))
    assert drawn.places[-1] < len(losses)
    assert len(drawn.weights) == len(drawn.places)
    assert min(drawn.weights) > 0


def test_of_samples_that_are_alike_every_nth_is_drawn_and_weighs_as_much() -> None:
    assert telling(np.ones(12), 4).weights == pytest.approx([1.0] * 4)
    assert telling(np.zeros(12), 4) == evenly(12, 4) == Subset((0, 3, 6, 9), (1.0,) * 4)
    assert telling(np.arange(3.0), 3) == telling(np.arange(3.0), 9) == evenly(3, 9)


def test_the_worst_are_drawn_and_weigh_less() -> None:
    losses = np.ones(100)
    losses[[17, 60]] = 200.0
    drawn = telling(losses, 8)
    weights = dict(zip(drawn.places, drawn.weights, strict=True))
    assert {17, 60} <= set(weights)
    assert max(weights[17], weights[60]) < min(
        weight for place, weight in weights.items() if place not in (17, 60)
    )
    # One region alone loses as the whole does, but less, and another the same everywhere.
    rows = list(drawn.places)
    assert np.mean(0.3 * losses[rows] * drawn.weights) == pytest.approx(
        0.3 * losses.mean(), rel=0.3
    )
    assert np.mean(drawn.weights) == pytest.approx(1.0, rel=0.6)


def test_the_weighted_mean_is_that_of_all_over_many_draws() -> None:
    rng = np.random.default_rng(0)
    found, plain, wanted = [], [], []
    for _ in range(200):
        losses = rng.lognormal(0, 2, 120)
        own = losses * rng.lognormal(0, 0.5, 120)
        drawn = telling(losses, 14)
        found.append(np.mean(own[list(drawn.places)] * drawn.weights))
        plain.append(np.mean(own[list(evenly(120, 14).places)]))
        wanted.append(own.mean())
    off, old = (np.log(np.array(one) / wanted) for one in (found, plain))
    assert abs(off.mean()) < 0.1
    assert off.std() < 0.4 * old.std()


def test_broken_outputs_raise_no_chance() -> None:
    losses = np.array([1.0, math.inf, 1.0, 1.0, -3.0, 9.0])
    drawn = telling(losses, 3)
    assert 5 in drawn.places
    assert all(map(math.isfinite, drawn.weights))
