"""The bootstrap's interval of a mean, whose right answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from ortune.statistics import bootstrap

VALUES = np.random.default_rng(3).normal(5.0, 2.0, 400)


def mean(rows: np.ndarray) -> float:
    return float(VALUES[rows].mean())


def alone(n: int) -> list[np.ndarray]:
    return [np.array([at]) for at in range(n)]


@pytest.mark.parametrize("error", [0.05, 0.25])
def test_each_end_is_one_sided_at_the_error(error: float) -> None:
    low, high = bootstrap.interval(mean, alone(400), error)
    sd = VALUES.std() / math.sqrt(400)
    for end in (low - VALUES.mean(), VALUES.mean() - high):
        assert end / sd == pytest.approx(norm.ppf(error), abs=0.2)


def test_few_are_widened() -> None:
    """Of two values the spread that is drawn is 1 / sqrt(2) of what it should be."""
    two = alone(2)
    low, high = bootstrap.interval(mean, two, 0.05)
    half = abs(VALUES[0] - VALUES[1]) / 2 * math.sqrt(2)
    assert (high - low) / 2 == pytest.approx(half)
    assert (high + low) / 2 == pytest.approx(VALUES[:2].mean())


@pytest.mark.parametrize("members", [[], alone(1), [np.arange(9)]])
def test_one_group_tells_nothing(members: list[np.ndarray]) -> None:
    assert bootstrap.interval(mean, members, 0.05) == (-math.inf, math.inf)


def test_a_group_is_drawn_as_a_whole() -> None:
    seen: list[np.ndarray] = []
    groups = [np.array([0, 3]), np.array([1]), np.array([2, 5, 4])]

    def watched(rows: np.ndarray) -> float:
        seen.append(rows)
        return float(len(rows))

    bootstrap.interval(watched, groups, 0.05)
    for rows in seen:
        text = ",".join(map(str, rows)) + ","
        for group in ("0,3,", "1,", "2,5,4,"):
            text = text.replace(group, "")
        assert text == ""
    assert {len(rows) for rows in seen} == {3, 4, 5, 6, 7, 8, 9}
    assert len(seen) > 300


def test_the_seed_decides() -> None:
    one, same, other = (bootstrap.interval(mean, alone(50), 0.05, seed) for seed in (1, 1, 2))
    assert one == same != other
