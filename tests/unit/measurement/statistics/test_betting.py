"""Betting bounds hold at any number of samples, whatever the population."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ortune.measurement.statistics import betting

DRAWS = 300


def false_proofs(draw: object, bound: float, least: float, n: int, error: float = 0.2) -> int:
    """Count how often a bound is proved that the population's mean just does not pass."""
    rng, found = np.random.default_rng(n), 0
    for _ in range(DRAWS):
        values, sizes = draw(rng, n)  # type: ignore[operator]
        found += betting.is_mean_above(values, sizes, bound, least, error)
    return found


def rare(every: int):  # type: ignore[no-untyped-def]
    """One loss of everything in so many."""
    return lambda rng, n: (-(rng.random(n) < 1 / every).astype(float), np.ones(n))


def crowded(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups of 1 to 5 samples that are lost together, one in 40."""
    sizes = rng.integers(1, 6, n).astype(float)
    return np.where(rng.random(n) < 1 / 40, -sizes, 0.0), sizes


def skewed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Small gains, and losses with a long tail, of mean -0.01."""
    values = np.where(rng.random(n) < 0.05, -rng.beta(0.3, 0.3, n), (0.025 - 0.01) / 0.95)
    return values, np.ones(n)


@pytest.mark.parametrize("n", [8, 60, 400])
@pytest.mark.parametrize(
    ("draw", "bound"),
    [
        *((rare(every), -1 / every) for every in (20, 100, 500)),
        (crowded, -1 / 40),
        (skewed, -0.01),
    ],
)
def test_what_is_not_so_is_seldom_proved(draw: object, bound: float, n: int) -> None:
    """At an error of a fifth, so that few draws can tell."""
    found = false_proofs(draw, bound, -1.0, n)
    assert stats.binomtest(found, DRAWS, 0.2, alternative="greater").pvalue > 1e-4


def test_the_bound_is_where_the_test_turns() -> None:
    rng = np.random.default_rng(0)
    values, ones = rng.normal(0.8, 0.05, 300).clip(0, 1), np.ones(300)
    bound = betting.lower_bound(values, ones, 0.0, 0.05)
    assert 0.75 < bound < values.mean()
    assert betting.is_mean_above(values, ones, bound - 1e-6, 0.0, 0.05)
    assert not betting.is_mean_above(values, ones, bound + 1e-4, 0.0, 0.05)


def test_unchanged_units_that_prove_a_point() -> None:
    n = betting.compute_min_units(0.01, 1.0, 0.05)
    assert n is not None
    least = math.log(1 / 0.05) / -math.log1p(-0.01)
    assert least < n < 1.35 * least
    for count, proves in ((n, True), (n - 1, False)):
        assert betting.is_mean_above(np.zeros(count), np.ones(count), -0.01, -1.0, 0.05) is proves
    assert betting.estimate_required_units(
        np.zeros(9), np.ones(9), -0.01, -1.0, 0.05
    ) == pytest.approx(n, rel=0.1)
    assert [betting.compute_min_units(m, 1.0, 0.05) for m in (0.01, 0.05, 0.3)] == [375, 74, 11]
    assert betting.compute_min_units(0.02, 2.0, 0.05) == betting.compute_min_units(0.01, 1.0, 0.05)
    assert betting.compute_min_units(0.0, 1.0, 0.05) is None
    assert betting.compute_min_units(-0.1, 1.0, 0.05) is None
    assert betting.compute_min_units(1.0, 1.0, 0.05) == 1
    assert betting.compute_min_units(2.0, 1.0, 0.05) == 1


def test_the_number_needed_is_about_right() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.85, 0.1, 4000).clip(0, 1)
    n = betting.estimate_required_units(values, np.ones(4000), 0.83, 0.0, 0.05)
    assert n is not None
    proved = [
        betting.is_mean_above(
            rng.choice(values, round(1.5 * n)), np.ones(round(1.5 * n)), 0.83, 0.0, 0.05
        )
        for _ in range(40)
    ]
    assert sum(proved) >= 20
    assert betting.estimate_required_units(values, np.ones(4000), 0.9, 0.0, 0.05) is None
    assert betting.estimate_required_units(np.zeros(0), np.zeros(0), 0.9, 0.0, 0.05) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=40),
    st.integers(0, 39),
    st.floats(0, 1),
    st.floats(-0.9, 0.9),
)
def test_less_is_never_proved_sooner(
    values: list[float], place: int, loss: float, bound: float
) -> None:
    one = np.array(values)
    two = one.copy()
    two[place % len(two)] -= min(loss, two[place % len(two)] + 1)
    ones = np.ones(len(one))
    before, after = (betting.compute_log_capital(v, ones, bound, -1.0) for v in (one, two))
    assert after <= before + 1e-9
    assert (
        betting.lower_bound(two, ones, -1.0, 0.05)
        <= betting.lower_bound(one, ones, -1.0, 0.05) + 1e-6
    )


def test_the_sizes_of_groups_count_by_the_largest() -> None:
    """Groups of one size are as good as single samples; one large group is one bet."""
    units = np.full(400, 0.0)
    ones = np.ones(400)
    alike = betting.compute_log_capital(units, ones, -0.01, -1.0)
    assert betting.compute_log_capital(units, 7 * ones, -0.01, -1.0) == pytest.approx(alike)
    uneven = np.array([100.0, *[1.0] * 399])
    assert betting.compute_log_capital(units, uneven, -0.01, -1.0) < 0.1 * alike


ONES = np.ones(4000)


def grows(values: list[float], bound: float, sizes: list[float] | None = None) -> float:
    found = np.array(values)
    return betting.compute_log_capital(
        found, np.array(sizes) if sizes else np.ones(len(found)), bound, -1.0
    )


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


def test_a_capital_beyond_what_a_float_holds() -> None:
    grown = 4000 * np.log1p(3 * betting.BETS) + np.log(betting.WEIGHTS)
    assert grows([1.0] * 4000, -0.5) == pytest.approx(np.logaddexp.reduce(grown))


def test_the_worst_value_warns_of_nothing() -> None:
    with np.errstate(divide="raise"):
        assert grows([-1.0], -0.5) == 0.0


def test_one_unit_may_do() -> None:
    assert betting.compute_min_units(40 / 41, 1.0, 0.05) == 1
    assert betting.is_mean_above(np.zeros(1), ONES[:1], -40 / 41, -1.0, 0.05)


def test_no_value_proves_nothing_and_what_cannot_be_missed_is_proved() -> None:
    assert grows([], -0.5) == 0.0
    assert grows([-1.0], -1.1) == math.inf
    assert grows([0.0] * 100, -1.0) == 0.0


@pytest.mark.parametrize("error", [0.05, 0.01])
@pytest.mark.parametrize("margin", [0.3, 0.05, 0.01])
def test_exactly_so_many_unchanged_ones_prove_a_margin(margin: float, error: float) -> None:
    n = betting.compute_min_units(margin, 1.0, error)
    assert n is not None
    assert betting.is_mean_above(np.zeros(n), ONES[:n], -margin, -1.0, error)
    assert not betting.is_mean_above(np.zeros(n - 1), ONES[: n - 1], -margin, -1.0, error)


def test_only_proportions_of_the_sizes_count() -> None:
    values, sizes = np.array([0.0, -1.0, 0.5, 2.0]), np.array([1.0, 3.0, 2.0, 4.0])
    one = betting.compute_log_capital(values, sizes, -0.4, -1.0)
    assert betting.compute_log_capital(3 * values, 3 * sizes, -0.4, -1.0) == pytest.approx(one)
    assert betting.compute_log_capital(values, sizes[::-1].copy(), -0.4, -1.0) != pytest.approx(
        one
    )


class TestLowerBound:
    def test_it_is_where_the_proof_ends(self) -> None:
        values = np.where(np.arange(300) % 10 == 3, 0.0, 1.0)
        found = betting.lower_bound(values, ONES[:300], 0.0, 0.05)
        assert betting.is_mean_above(values, ONES[:300], found, 0.0, 0.05)
        assert not betting.is_mean_above(values, ONES[:300], found + 1e-6, 0.0, 0.05)
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
        n = betting.estimate_required_units(values, ONES[:200], -0.05, -1.0, 0.05)
        assert n is not None
        many = np.tile(values, math.ceil(2 * n / 200))[: 2 * n]
        assert betting.is_mean_above(many, np.ones(2 * n), -0.05, -1.0, 0.05)
        few = many[: n // 3]
        assert not betting.is_mean_above(few, np.ones(len(few)), -0.05, -1.0, 0.05)

    def test_a_mean_below_the_bound_never_proves_it(self) -> None:
        assert (
            betting.estimate_required_units(np.full(9, -0.2), ONES[:9], -0.1, -1.0, 0.05) is None
        )
        assert betting.estimate_required_units(np.zeros(0), np.zeros(0), -0.1, -1.0, 0.05) is None
        assert betting.estimate_required_units(np.zeros(9), ONES[:9], -1.0, -1.0, 0.05) is None
        assert (
            betting.estimate_required_units(np.full(9, -0.5), ONES[:9], -0.5, -1.0, 0.05) is None
        )

    def test_of_unchanged_ones_it_is_no_fewer_than_prove_it(self) -> None:
        n = betting.estimate_required_units(np.zeros(9), ONES[:9], -0.05, -1.0, 0.05)
        least = betting.compute_min_units(0.05, 1.0, 0.05)
        assert n is not None and least is not None and least <= n <= 1.1 * least
