"""The exact paired test: its size is never above the error."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ortune.measurement.statistics import paired

CELLS = [(5, 0.4), (15, 0.2), (30, 0.1), (25, 0.0), (20, -0.1)]


@cache
def accepted(n: int, delta: float, error: float) -> np.ndarray:
    """Which outcomes [lost, won] are called proof."""
    found = np.zeros((n + 1, n + 1), bool)
    for won in range(n + 1):
        for lost in range(n - won + 1):
            proves = paired.p_value(n, lost, won, delta, error) <= error
            found[lost, won] = proves
            if not proves:
                break
    return found


def size(n: int, found: np.ndarray, lost: float, won: float) -> float:
    """Return the chance of proof at these shares of answers lost and won."""
    losses, wins = np.nonzero(found)
    rows = np.stack([losses, wins, n - losses - wins], axis=1)
    if lost + won > 1:
        return 0.0
    return float(stats.multinomial.pmf(rows, n, [lost, won, max(0.0, 1 - lost - won)]).sum())


@pytest.mark.parametrize(("n", "delta"), CELLS)
@pytest.mark.parametrize("error", [0.05, 0.2])
def test_its_size_by_enumeration(n: int, delta: float, error: float) -> None:
    found = accepted(n, delta, error)
    most = (1 - abs(delta)) / 2
    sizes = []
    for q in np.concatenate([np.linspace(0, most, 41), np.geomspace(1e-4, most, 41)]):
        lost, won = (q + delta, q) if delta >= 0 else (q, q - delta)
        sizes.append(size(n, found, lost, won))
        assert size(n, found, lost + 0.03, won) <= error
    assert max(sizes) <= error
    assert max(sizes) > 0.3 * error or found.sum() == 0


def test_unchanged_answers() -> None:
    for n in (298, 299):
        p = paired.p_value(n, 0, 0, 0.01, 0.05)
        assert p == pytest.approx(0.99**n, abs=1e-4)
        assert (p <= 0.05) is (n == 299)
    assert paired.compute_min_samples(0.01, 0.05) == 299
    assert paired.compute_min_samples(0.02, 0.05) == 149
    for delta in (0.0, -0.01, 1.0, 1.5):
        assert paired.compute_min_samples(delta, 0.05) is None, (
            "no number proves a limit of nothing"
        )
    n = paired.compute_min_samples(0.01, 0.05 / 3)
    assert n is not None and 0.99**n <= 0.05 / 3 < 0.99 ** (n - 3)


@pytest.mark.parametrize(
    ("delta", "error", "n"), [(0.3, 0.05, 10), (0.01, 0.01, 472), (0.001, 0.05, 2996)]
)
def test_more_are_needed_where_the_unknown_share_takes_of_the_error(
    delta: float, error: float, n: int
) -> None:
    assert paired.compute_min_samples(delta, error) == n
    assert (1 - delta) ** (n - 1) <= error, "of a known share one fewer would do"
    proves = [paired.p_value(count, 0, 0, delta, error) <= error for count in (n - 1, n)]
    assert proves == [False, True]


def by_hand(n: int, lost: int, won: int, delta: float, q: float) -> float:
    """The chance of so good an outcome, outcome by outcome."""

    def z(losses: int, wins: int) -> float:
        ahead = wins - losses + n * delta
        return ahead / math.sqrt(wins + losses + n * delta)

    chance, seen = 0.0, z(lost, won)
    for losses in range(n + 1):
        for wins in range(n - losses + 1):
            if z(losses, wins) >= seen - 1e-12:
                rest = n - losses - wins
                shares = [q + delta, q, max(0.0, 1 - 2 * q - delta)]
                chance += float(stats.multinomial.pmf([losses, wins, rest], n, shares))
    return chance


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (1, 0), (0, 2), (2, 3)])
def test_its_p_value_is_the_largest_over_the_unknown(lost: int, won: int) -> None:
    n, delta, error = 20, 0.2, 0.05
    found = paired.p_value(n, lost, won, delta, error)
    gamma = paired.GAMMA * error
    low, high = stats.binomtest(won, n).proportion_ci(1 - gamma, "exact")
    roots = np.linspace(math.sqrt(low), math.sqrt(min(high, 0.399999)), 60)
    chances = [by_hand(n, lost, won, delta, q) for q in roots**2]
    assert found == pytest.approx(max(chances) + gamma, abs=2e-3)
    assert found >= max(chances) - 1e-9


FIGURES = [
    ((20, 1, 2), 0.2, 0.05, 0.021078927478),
    ((60, 2, 0), 0.1, 0.05, 0.06113906692573),
    ((60, 0, 9), 0.05, 0.05 / 3, 0.000188423124697),
    ((100, 0, 0), 0.01, 0.05, 0.366081971543953),
    ((400, 30, 10), 0.1, 0.05, 0.004126522236805),
    ((400, 10, 30), 0.0, 0.05, 0.033629201057389),
    ((300, 4, 9), -0.01, 0.2, 0.40293924961163),
    ((1000, 8, 8), 0.01, 0.05, 0.018578053414821),
    ((2000, 3, 20), 0.002, 0.05, 6.6194694546e-05),
    ((2000, 300, 300), 0.01, 0.05, 0.208441904963782),
    ((5000, 60, 50), 0.01, 0.05, 0.000310701357323),
]


@pytest.mark.parametrize(("outcome", "delta", "error", "p"), FIGURES)
def test_its_figures(outcome: tuple[int, int, int], delta: float, error: float, p: float) -> None:
    """As they were when their size was checked by enumeration: a changed test shows."""
    assert paired.p_value(*outcome, delta, error) == pytest.approx(p, rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2000),
    st.floats(0.001, 0.3),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([0.05, 0.01]),
)
def test_more_losses_never_prove_more(
    n: int, delta: float, lost: int, won: int, error: float
) -> None:
    won = min(won, n)
    lost = min(lost, n - won)
    p = paired.p_value(n, lost, won, delta, error)
    assert 0 <= p <= 1
    if lost + won < n:
        assert paired.p_value(n, lost + 1, won, delta, error) >= p - 1e-9


@pytest.mark.parametrize(("n", "delta"), [(200, 0.05), (200, 0.0), (200, -0.01), (5000, 0.01)])
def test_each_answer_lost_counts_against_and_each_one_won_for_it(n: int, delta: float) -> None:
    by_lost = [paired.p_value(n, lost, 5, delta, 0.05) for lost in range(0, 12, 2)]
    assert by_lost == sorted(by_lost) and by_lost[0] < by_lost[-1]
    by_won = [paired.p_value(n, 5, won, delta, 0.05) for won in range(0, 12, 2)]
    assert by_won == sorted(by_won, reverse=True) and by_won[0] > by_won[-1]


def test_nothing_seen_proves_nothing_and_what_cannot_be_missed_is_proved() -> None:
    assert paired.p_value(0, 0, 0, 0.01, 0.05) == 1.0
    assert paired.p_value(10, 10, 0, 1.0, 0.05) == 0.0
    assert paired.p_value(10, 0, 10, -1.0, 0.05) == 1.0
    assert paired.p_value(50, 50, 0, 0.1, 0.05) == pytest.approx(1.0, abs=1e-4)
    assert paired.estimate_loss_bound(0, 0, 0, 0.05) == 1.0


@pytest.mark.parametrize("outcome", [(400, 180, 180), (100, 100, 0), (100, 0, 100), (1, 1, 0)])
@pytest.mark.parametrize("delta", [0.01, 0.5, 0.99, 1.0, 0.0, -0.4, -0.99])
def test_every_outcome_has_one(outcome: tuple[int, int, int], delta: float) -> None:
    assert 0 <= paired.p_value(*outcome, delta, 0.05) <= 1
    assert -1 <= paired.estimate_loss_bound(*outcome, 0.05) <= 1


@pytest.mark.parametrize(
    "outcome", [(299, 0, 0), (1000, 8, 8), (2000, 3, 20), (400, 30, 10), (60, 2, 0), (60, 0, 9)]
)
def test_the_bound_is_where_the_test_turns(outcome: tuple[int, int, int]) -> None:
    n, lost, won = outcome
    bound = paired.estimate_loss_bound(*outcome, 0.05)
    assert bound > (lost - won) / n
    step = 0.04 * (abs(bound) + 2 / outcome[0])
    assert paired.p_value(*outcome, bound + step, 0.05) <= 0.05
    assert paired.p_value(*outcome, bound - step, 0.05) > 0.05


@pytest.mark.parametrize(
    ("outcome", "bound"),
    [
        ((299, 0, 0), 0.009972455548854),
        ((1000, 8, 8), 0.007599313863067),
        ((400, 30, 10), 0.079946381827504),
        ((60, 0, 9), -0.017835404320087),
        ((25, 1, 0), 0.180746864516266),
    ],
)
def test_the_bounds_that_are_shown(outcome: tuple[int, int, int], bound: float) -> None:
    assert paired.estimate_loss_bound(*outcome, 0.05) == pytest.approx(bound, rel=1e-8)


@pytest.mark.parametrize(("lost", "won"), [(0.0, 0.0), (0.002, 0.0), (0.005, 0.004), (0.0, 0.01)])
def test_the_number_needed_is_about_right(lost: float, won: float) -> None:
    n = paired.estimate_required_samples(lost, won, 0.01, 0.05)
    assert n is not None
    more = round(1.3 * n)
    outcome = more, round(lost * more), round(won * more)
    assert paired.p_value(*outcome, 0.01, 0.05) <= 0.05
    less = round(0.6 * n)
    outcome = less, round(lost * less), round(won * less)
    assert paired.p_value(*outcome, 0.01, 0.05) > 0.05
    assert paired.estimate_required_samples(0.02, 0.01, 0.01, 0.05) is None
    rates = [(0.002, 0.0, 0.01), (0.005, 0.004, 0.01), (0.02, 0.03, 0.0), (0.01, 0.03, -0.01)]
    assert [paired.estimate_required_samples(*rate, 0.05) for rate in rates] == [
        562,
        703,
        1498,
        1199,
    ]
    assert paired.estimate_required_samples(0.03, 0.01, 0.01, 0.05) is None
