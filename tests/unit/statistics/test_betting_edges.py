"""Bets on a mean: they hold at any number of samples, and win where nothing is lost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortune.statistics import betting

ONES = np.ones(4000)


def grows(values: list[float], bound: float, sizes: list[float] | None = None) -> float:
    found = np.array(values)
    return betting.growth(found, np.array(sizes) if sizes else np.ones(len(found)), bound, -1.0)


def test_the_gambler_begins_with_one_and_spends_all_of_it() -> None:
    assert betting.WEIGHTS.sum() == pytest.approx(1.0)
    assert len(betting.WEIGHTS) == len(betting.BETS)
    assert betting.BETS.max() == 1.0 and betting.BETS.min() > 0


def test_a_capital_by_hand() -> None:
    """Each bet multiplies by 1 + bet (value - bound) / (bound - least)."""
    ahead = [(v + 0.5) / 0.5 for v in (0.0, -0.7, 0.2)]
    capitals = np.cumprod([1 + betting.BETS * a for a in ahead], axis=0) @ betting.WEIGHTS
    assert grows([0.0, -0.7, 0.2], -0.5) == pytest.approx(math.log(capitals.max()))
    assert grows([-0.7, -0.9], -0.5) == 0.0, "what was lost is not owed: it began with 1"


def test_the_largest_capital_on_the_way_counts() -> None:
    rising = [0.0] * 40
    assert grows([*rising, *[-0.9] * 40], -0.2) == pytest.approx(grows(rising, -0.2))


def test_the_boldest_bet_loses_all_to_the_worst_value_and_the_others_go_on() -> None:
    before, after = grows([0.0] * 5, -0.5), grows([-1.0, *[0.0] * 200], -0.5)
    assert math.isfinite(after) and after > before


def test_no_value_proves_nothing_and_what_cannot_be_missed_is_proved() -> None:
    assert grows([], -0.5) == 0.0
    assert grows([-1.0], -1.1) == math.inf
    assert grows([0.0] * 100, -1.0) == 0.0


@pytest.mark.parametrize("error", [0.05, 0.01])
@pytest.mark.parametrize("margin", [0.3, 0.05, 0.01])
def test_exactly_so_many_unchanged_ones_prove_a_margin(margin: float, error: float) -> None:
    n = betting.unchanged(margin, 1.0, error)
    assert n is not None
    assert betting.proves(np.zeros(n), ONES[:n], -margin, -1.0, error)
    assert not betting.proves(np.zeros(n - 1), ONES[: n - 1], -margin, -1.0, error)


def test_how_many_unchanged_ones_that_are() -> None:
    assert [betting.unchanged(m, 1.0, 0.05) for m in (0.01, 0.05, 0.3)] == UNCHANGED
    assert betting.unchanged(0.02, 2.0, 0.05) == betting.unchanged(0.01, 1.0, 0.05)
    assert betting.unchanged(0.0, 1.0, 0.05) is None
    assert betting.unchanged(-0.1, 1.0, 0.05) is None
    assert betting.unchanged(1.0, 1.0, 0.05) == 1
    assert betting.unchanged(2.0, 1.0, 0.05) == 1


UNCHANGED = [375, 74, 11]
"""Of margins 0.01, 0.05 and 0.3 at 5 %."""


@pytest.mark.parametrize("rare", [0.5, 0.05, 0.01])
@pytest.mark.parametrize("n", [8, 60, 500])
def test_at_the_limit_no_more_than_the_error_is_proved(rare: float, n: int) -> None:
    """Values lose all with a small chance: what fools a bootstrap. 600 draws, 5 % are 30."""
    rng = np.random.default_rng([n, int(100 * rare)])
    proved = sum(
        betting.proves(-(rng.random(n) < rare).astype(float), ONES[:n], -rare, -1.0, 0.05)
        for _ in range(600)
    )
    assert proved <= 30 + 17, "three standard deviations"


def test_so_it_is_with_groups_of_unlike_size() -> None:
    rng, proved = np.random.default_rng(7), 0
    for _ in range(400):
        sizes = rng.integers(1, 20, 60).astype(float)
        sums = -sizes * (rng.random(60) < 0.1)
        proved += betting.proves(sums, sizes, -0.1, -1.0, 0.05)
    assert proved <= 20 + 14


def test_only_proportions_of_the_sizes_count() -> None:
    values, sizes = np.array([0.0, -1.0, 0.5, 2.0]), np.array([1.0, 3.0, 2.0, 4.0])
    one = betting.growth(values, sizes, -0.4, -1.0)
    assert betting.growth(3 * values, 3 * sizes, -0.4, -1.0) == pytest.approx(one)
    assert betting.growth(values, sizes[::-1].copy(), -0.4, -1.0) != pytest.approx(one)


class TestLowerBound:
    def test_it_is_where_the_proof_ends(self) -> None:
        values = np.where(np.arange(300) % 10 == 3, 0.0, 1.0)
        found = betting.lower_bound(values, ONES[:300], 0.0, 0.05)
        assert betting.proves(values, ONES[:300], found, 0.0, 0.05)
        assert not betting.proves(values, ONES[:300], found + 1e-6, 0.0, 0.05)
        assert 0.8 < found < 0.9
        strict = betting.lower_bound(values, ONES[:300], 0.0, 0.001)
        assert strict < found
        assert betting.lower_bound(values[:30], ONES[:30], 0.0, 0.05) < found

    def test_nothing_seen_bounds_nothing(self) -> None:
        assert betting.lower_bound(np.zeros(0), np.zeros(0), -1.0, 0.05) == -1.0
        assert betting.lower_bound(np.full(9, -1.0), ONES[:9], -1.0, 0.05) == -1.0


class TestNeeded:
    def test_about_so_many_prove_it(self) -> None:
        values = np.where(np.arange(200) % 50 == 3, -1.0, 0.0)
        n = betting.needed(values, ONES[:200], -0.05, -1.0, 0.05)
        assert n is not None
        many = np.tile(values, math.ceil(2 * n / 200))[: 2 * n]
        assert betting.proves(many, np.ones(2 * n), -0.05, -1.0, 0.05)
        few = many[: n // 3]
        assert not betting.proves(few, np.ones(len(few)), -0.05, -1.0, 0.05)

    def test_a_mean_below_the_bound_never_proves_it(self) -> None:
        assert betting.needed(np.full(9, -0.2), ONES[:9], -0.1, -1.0, 0.05) is None
        assert betting.needed(np.zeros(0), np.zeros(0), -0.1, -1.0, 0.05) is None
        assert betting.needed(np.zeros(9), ONES[:9], -1.0, -1.0, 0.05) is None

    def test_of_unchanged_ones_it_is_no_fewer_than_prove_it(self) -> None:
        n = betting.needed(np.zeros(9), ONES[:9], -0.05, -1.0, 0.05)
        least = betting.unchanged(0.05, 1.0, 0.05)
        assert n is not None and least is not None and least <= n <= 1.1 * least
