"""Exact binomial tests against scipy's distributions and published sample sizes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binom

from ortune.statistics import binomial


@pytest.mark.parametrize("n", [1, 7, 60, 1500])
@pytest.mark.parametrize("p", [1e-6, 0.05, 0.5, 0.999])
def test_chances_add_up(n: int, p: float) -> None:
    for most in {-2, -1, 0, 1, n // 2, n - 1, n, n + 1}:
        assert binomial.cdf(most, n, p) == pytest.approx(binom.cdf(most, n, p), abs=1e-9)


def test_certain_and_impossible_successes() -> None:
    assert (binomial.cdf(3, 10, 0.0), binomial.cdf(3, 10, 1.0)) == (1.0, 0.0)
    assert (binomial.cdf(10, 10, 1.0), binomial.cdf(-1, 10, 0.0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("n", "outside"), [(58, -1), (59, 0), (92, 0), (93, 1), (123, 1), (124, 2), (153, 3), (181, 4)]
)
def test_sample_sizes_of_a_tolerance_bound_of_95_and_95_percent(n: int, outside: int) -> None:
    """Wilks' numbers, as every handbook of nuclear safety lists them."""
    assert binomial.allowed(n, 0.95, 0.05) == outside


@pytest.mark.parametrize("n", [1, 20, 400])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_one_more_outside_than_allowed_proves_nothing(n: int, share: float) -> None:
    most = binomial.allowed(n, share, 0.05)
    assert most == -1 or binom.cdf(most, n, 1 - share) <= 0.05
    assert binom.cdf(most + 1, n, 1 - share) > 0.05


@pytest.mark.parametrize("n", [1, 12, 300])
@pytest.mark.parametrize("error", [0.05, 0.005])
def test_the_lower_bound_is_clopper_and_pearsons(n: int, error: float) -> None:
    for successes in range(1, n + 1, max(1, n // 5)):
        wanted = beta.ppf(error, successes, n - successes + 1)
        assert binomial.least(successes, n, error) == pytest.approx(wanted, abs=1e-9)
    assert binomial.least(0, n, error) == 0.0


@pytest.mark.parametrize(
    ("share", "error", "n"),
    [(0.95, 0.05, 59), (0.9, 0.05, 29), (0.99, 0.05, 299), (0.95, 0.05 / 3, 80), (0.5, 0.5, 1)],
)
def test_how_many_that_are_all_inside_prove_a_share(share: float, error: float, n: int) -> None:
    assert binomial.unchanged(share, error) == n
    assert share**n <= error + 1e-12 < share ** (n - 1)


class TestNeeded:
    @pytest.mark.parametrize("inside", [1.0, 0.99, 0.97])
    def test_so_many_prove_it_if_the_estimate_holds(self, inside: float) -> None:
        n = binomial.needed(inside, 0.95, 0.05)
        assert n is not None
        assert binom.cdf(round(n * (1 - inside)), n, 0.05) <= 0.05
        assert binom.cdf(round((n - 1) * (1 - inside)), n - 1, 0.05) > 0.05

    @pytest.mark.parametrize("inside", [0.0, 0.95])
    def test_an_estimate_no_better_than_the_share_never_proves_it(self, inside: float) -> None:
        assert binomial.needed(inside, 0.95, 0.05) is None
        assert binomial.needed(0.9501, 0.95, 0.05) is None, "millions"

    @pytest.mark.parametrize("least", [1, 2, 59, 60, 137, 99_999, 100_000])
    def test_the_first_is_found(self, least: int) -> None:
        for start in (0, 1, 59):
            found = binomial.first(lambda n: n >= least, start)
            assert found == max(least, start, 1)

    def test_nobody_is_told_of_more_than_a_hundred_thousand(self) -> None:
        asked = []
        assert binomial.first(lambda n: bool(asked.append(n)), 59) is None
        assert max(asked) == binomial.MOST == 100_000


def test_log_factorials() -> None:
    table = binomial.log_factorials(5)
    assert np.exp(table[:6]) == pytest.approx([1, 1, 2, 6, 24, 120])
    assert len(binomial.log_factorials(3000)) > 3000
