"""The exact paired test of right and wrong answers, against every outcome enumerated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, multinomial

from ortune.statistics import paired


def chance(n: int, outcomes: list[tuple[int, int]], lost: float, won: float) -> float:
    """Return the chance of any of these counts of lost and won."""
    counts = np.array([(a, b, n - a - b) for a, b in outcomes])
    return float(multinomial.pmf(counts, n, [lost, won, 1 - lost - won]).sum())


@pytest.mark.parametrize(("n", "delta"), [(299, 0.01), (298, 0.01), (149, 0.02), (59, 0.05)])
def test_of_unchanged_answers_it_is_the_chance_that_none_is_lost(n: int, delta: float) -> None:
    found = paired.p_value(n, 0, 0, delta, 0.05)
    assert found == pytest.approx((1 - delta) ** n + paired.GAMMA * 0.05, abs=1e-6)


@pytest.mark.parametrize(("n", "delta"), [(12, 0.1), (25, 0.1), (25, 0.0), (25, -0.1)])
def test_what_lies_at_the_limit_is_proved_in_five_percent_at_most(n: int, delta: float) -> None:
    """The chance of an error, summed over all outcomes, whatever the unknown share is."""
    outcomes = [(lost, won) for lost in range(n + 1) for won in range(n + 1 - lost)]
    proving = [(a, b) for a, b in outcomes if paired.p_value(n, a, b, delta, 0.05) <= 0.05]
    assert proving
    for unknown in np.linspace(0.0, 0.999 * (1 - abs(delta)) / 2, 12):
        rates = unknown + max(0.0, delta), unknown + max(0.0, -delta)
        assert chance(n, proving, *rates) <= 0.05 + 1e-9


@pytest.mark.parametrize(
    ("n", "lost", "won", "delta"), [(30, 1, 4, 0.1), (40, 3, 3, 0.15), (30, 0, 6, 0.0)]
)
def test_the_worst_unknown_share_counts(n: int, lost: int, won: int, delta: float) -> None:
    """By brute force over a fine grid of it; what is restricted costs `GAMMA`."""

    def z(a: int, b: int) -> float:
        ahead = b - a + n * delta
        return ahead / math.sqrt(a + b + n * delta) if delta > 0 else ahead

    good = [
        (a, b)
        for a in range(n + 1)
        for b in range(n + 1 - a)
        if a + b + n * delta > 0 and z(a, b) >= z(lost, won) - 1e-12
    ]
    half = paired.GAMMA * 0.05 / 2
    low = float(beta.ppf(half, won, n - won + 1))
    high = min(float(beta.isf(half, won + 1, n - won)), (1 - delta) / 2 - 1e-9)
    worst = max(chance(n, good, q + delta, q) for q in np.linspace(low, high, 200))
    found = paired.p_value(n, lost, won, delta, 0.05)
    assert found == pytest.approx(worst + paired.GAMMA * 0.05, rel=0.01), "the grid is as fine"


def test_each_answer_lost_counts_against_and_each_one_won_for_it() -> None:
    for n, delta in ((200, 0.05), (200, 0.0), (5000, 0.01)):
        by_lost = [paired.p_value(n, lost, 5, delta, 0.05) for lost in range(0, 12, 2)]
        assert by_lost == sorted(by_lost) and by_lost[0] < by_lost[-1]
        by_won = [paired.p_value(n, 5, won, delta, 0.05) for won in range(0, 12, 2)]
        assert by_won == sorted(by_won, reverse=True) and by_won[0] > by_won[-1]


def test_nothing_seen_proves_nothing_and_what_cannot_be_missed_is_proved() -> None:
    assert paired.p_value(0, 0, 0, 0.01, 0.05) == 1.0
    assert paired.p_value(10, 10, 0, 1.0, 0.05) == 0.0
    assert paired.p_value(10, 0, 10, -1.0, 0.05) == 1.0
    assert paired.p_value(50, 50, 0, 0.1, 0.05) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("n", "lost", "won"), [(299, 0, 0), (1000, 8, 8), (300, 10, 2), (9000, 20, 0), (60, 0, 9)]
)
def test_the_bound_that_is_shown_inverts_the_test(n: int, lost: int, won: int) -> None:
    bound = paired.most_lost(n, lost, won, 0.05)
    assert bound > (lost - won) / n
    assert paired.p_value(n, lost, won, bound, 0.05) == pytest.approx(0.05, rel=0.15)


def test_of_nothing_seen_all_may_be_lost() -> None:
    assert paired.most_lost(0, 0, 0, 0.05) == 1.0


class TestHowMany:
    @pytest.mark.parametrize(
        ("delta", "error", "n"), [(0.01, 0.05, 299), (0.02, 0.05, 149), (0.01, 0.05 / 3, 408)]
    )
    def test_unchanged_answers_prove_a_loss_below_a_limit(
        self, delta: float, error: float, n: int
    ) -> None:
        assert paired.unchanged(delta, error) == n
        assert paired.p_value(n, 0, 0, delta, error) <= error
        assert paired.p_value(n - 1, 0, 0, delta, error) > error

    @pytest.mark.parametrize("delta", [0.0, -0.01, 1.0, 1.5])
    def test_no_number_proves_a_limit_of_nothing(self, delta: float) -> None:
        assert paired.unchanged(delta, 0.05) is None

    def test_with_some_lost_it_takes_more(self) -> None:
        assert paired.needed(0.0, 0.0, 0.01, 0.05) == 299
        n = paired.needed(0.002, 0.001, 0.01, 0.05)
        assert n is not None
        for times, proved in ((0.5, False), (2, True)):
            many = round(times * n)
            p = paired.p_value(many, round(0.002 * many), round(0.001 * many), 0.01, 0.05)
            assert (p <= 0.05) is proved
        assert paired.needed(0.02, 0.01, 0.01, 0.05) is None
        assert paired.needed(0.03, 0.01, 0.01, 0.05) is None
