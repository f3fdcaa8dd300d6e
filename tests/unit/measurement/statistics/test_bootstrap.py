"""The group bootstrap."""

import math

import numpy as np
import pytest
from scipy import stats

from ortune.measurement.statistics.bootstrap import compute_interval


def test_it_is_students_for_a_mean_of_many() -> None:
    values = np.random.default_rng(0).normal(3, 2, 400)
    members = list(np.arange(400)[:, None])
    low, high = compute_interval(lambda rows: float(values[rows].mean()), members, 0.05)
    half = stats.t.ppf(0.95, 399) * values.std(ddof=1) / math.sqrt(400)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.04)


def test_groups_are_drawn_whole() -> None:
    groups = np.split(np.arange(60), [10, 15, 40])
    seen: set[tuple[int, ...]] = set()

    def statistic(rows: np.ndarray) -> float:
        places = np.searchsorted([10, 15, 40], rows, side="right")
        counts = np.bincount(places, minlength=4)
        assert all(count % len(group) == 0 for count, group in zip(counts, groups, strict=True))
        times = tuple(int(c) // len(g) for c, g in zip(counts, groups, strict=True))
        assert sum(times) == 4
        seen.add(times)
        return float(rows.mean())

    low, high = compute_interval(statistic, groups, 0.05)
    assert low < 29.5 < high
    assert len(seen) > 20


@pytest.mark.parametrize("members", [[], [np.array([0])], [np.arange(9)]])
def test_one_group_says_nothing(members: list[np.ndarray]) -> None:
    assert compute_interval(lambda rows: 1.0, members, 0.05) == (-math.inf, math.inf)


def test_rows_of_a_group_stay_together() -> None:
    seen: list[np.ndarray] = []
    groups = [np.array([0, 3]), np.array([1]), np.array([2, 5, 4])]

    def watched(rows: np.ndarray) -> float:
        seen.append(rows)
        return float(len(rows))

    compute_interval(watched, groups, 0.05)
    for rows in seen:
        text = ",".join(map(str, rows)) + ","
        for group in ("0,3,", "1,", "2,5,4,"):
            text = text.replace(group, "")
        assert text == ""
    assert {len(rows) for rows in seen} == {3, 4, 5, 6, 7, 8, 9}
    assert len(seen) > 300, "so many turns at least"


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).random(30)
    members = list(np.arange(30)[:, None])

    def ends(seed: int) -> tuple[float, float]:
        return compute_interval(lambda rows: float(values[rows].mean()), members, 0.05, seed)

    assert ends(1) == ends(1) != ends(2)


VALUES = np.random.default_rng(3).normal(5.0, 2.0, 400)


def mean(rows: np.ndarray) -> float:
    return float(VALUES[rows].mean())


def alone(n: int) -> list[np.ndarray]:
    return [np.array([at]) for at in range(n)]


@pytest.mark.parametrize("error", [0.05, 0.25])
def test_each_end_is_one_sided_at_the_error(error: float) -> None:
    low, high = compute_interval(mean, alone(400), error)
    sd = VALUES.std() / math.sqrt(400)
    for end in (low - VALUES.mean(), VALUES.mean() - high):
        assert end / sd == pytest.approx(stats.norm.ppf(error), abs=0.2)


def test_it_leans_to_the_side_that_the_statistic_leans_to() -> None:
    """The percentiles themselves, not their mirror image (Davison and Hinkley, section 5.3)."""
    values = np.random.default_rng(4).lognormal(0.0, 1.5, 20)
    low, high = compute_interval(lambda rows: float(values[rows].mean()), alone(20), 0.05)
    assert high - values.mean() > 1.2 * (values.mean() - low)


def test_few_are_widened() -> None:
    """Of two values the spread that is drawn is 1 / sqrt(2) of what it should be."""
    two = alone(2)
    low, high = compute_interval(mean, two, 0.05)
    half = abs(VALUES[0] - VALUES[1]) / 2 * math.sqrt(2)
    assert (high - low) / 2 == pytest.approx(half)
    assert (high + low) / 2 == pytest.approx(VALUES[:2].mean())
