"""Exact binomial tests, against scipy's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ortune.measurement.statistics import binomial

ERRORS = st.sampled_from([0.05, 0.05 / 3, 0.01])


@given(st.integers(1, 400), st.data(), st.floats(0.001, 0.999))
def test_the_distribution(n: int, data: st.DataObject, p: float) -> None:
    most = data.draw(st.integers(-1, n))
    assert binomial.cdf(most, n, p) == pytest.approx(stats.binom.cdf(most, n, p), abs=1e-11)


@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.95, 0.99]), ERRORS)
def test_so_many_may_be_outside(n: int, share: float, error: float) -> None:
    may = binomial.find_allowed_outside(n, share, error)
    assert stats.binom.cdf(may, n, 1 - share) <= error < stats.binom.cdf(may + 1, n, 1 - share)


@given(st.integers(1, 3000), st.data(), ERRORS)
def test_clopper_and_pearson(n: int, data: st.DataObject, error: float) -> None:
    right = data.draw(st.integers(0, n))
    wanted = stats.beta.ppf(error, right, n - right + 1) if right else 0.0
    assert binomial.compute_clopper_pearson(right, n, error) == pytest.approx(wanted, abs=1e-9)
    assert binomial.compute_clopper_pearson(right, n, error) <= wanted + 1e-11


@pytest.mark.parametrize(
    ("share", "error", "n"),
    [(0.95, 0.05, 59), (0.99, 0.05, 299), (0.9, 0.05, 29), (0.95, 0.05 / 3, 80), (0.5, 0.5, 1)],
)
def test_the_least_that_prove(share: float, error: float, n: int) -> None:
    assert binomial.count_needed_samples(share, error) == n
    assert share**n <= error + 1e-12 < share ** (n - 1)
    assert (
        binomial.find_allowed_outside(n, share, error) == 0
        and binomial.find_allowed_outside(n - 1, share, error) == -1
    )


@pytest.mark.parametrize("inside", [0.96, 0.97, 0.98, 0.99, 0.999])
def test_the_number_needed_proves(inside: float) -> None:
    n = binomial.find_required_samples(inside, 0.95, 0.05)
    assert n is not None
    outside = round(n * (1 - inside))
    assert stats.binom.cdf(outside, n, 0.05) <= 0.05


def test_none_is_needed_where_nothing_proves() -> None:
    assert binomial.find_required_samples(0.95, 0.95, 0.05) is None
    assert binomial.find_required_samples(0.95001, 0.95, 0.05) is None
    assert binomial.find_required_samples(0.5, 0.0, 0.05) == 1


def test_factorials() -> None:
    logs = binomial.log_factorials(2000)
    assert [logs[k] for k in (0, 1, 7, 2000)] == pytest.approx(
        [math.lgamma(k + 1) for k in (0, 1, 7, 2000)]
    )
    assert all(len(binomial.log_factorials(n)) > n for n in (0, 1023, 1024, 1025, 3000))


def test_certain_and_impossible_successes() -> None:
    assert (binomial.cdf(3, 10, 0.0), binomial.cdf(3, 10, 1.0)) == (1.0, 0.0)
    assert (binomial.cdf(10, 10, 1.0), binomial.cdf(-1, 10, 0.0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("n", "outside"), [(58, -1), (59, 0), (92, 0), (93, 1), (123, 1), (124, 2), (153, 3), (181, 4)]
)
def test_sample_sizes_of_a_tolerance_bound_of_95_and_95_percent(n: int, outside: int) -> None:
    """Wilks' numbers, as every handbook of nuclear safety lists them."""
    assert binomial.find_allowed_outside(n, 0.95, 0.05) == outside


class TestTheFirst:
    @pytest.mark.parametrize("inside", [1.0, 0.99, 0.97])
    def test_so_many_prove_it_if_the_estimate_holds(self, inside: float) -> None:
        n = binomial.find_required_samples(inside, 0.95, 0.05)
        assert n is not None
        assert stats.binom.cdf(round(n * (1 - inside)), n, 0.05) <= 0.05
        assert stats.binom.cdf(round((n - 1) * (1 - inside)), n - 1, 0.05) > 0.05

    @pytest.mark.parametrize("inside", [0.0, 0.95, math.nan])
    def test_an_estimate_no_better_than_the_share_never_proves_it(self, inside: float) -> None:
        assert binomial.find_required_samples(inside, 0.95, 0.05) is None
        assert binomial.find_required_samples(0.9501, 0.95, 0.05) is None, "millions"

    @pytest.mark.parametrize("least", [1, 2, 59, 60, 137, 99_999, 100_000])
    def test_the_first_is_found(self, least: int) -> None:
        for start in (0, 1, 59):
            found = binomial.find_first_proving(lambda n: n >= least, start)
            assert found == max(least, start, 1)

    def test_nobody_is_told_of_more_than_a_hundred_thousand(self) -> None:
        asked = []
        assert binomial.find_first_proving(lambda n: bool(asked.append(n)), 59) is None
        assert max(asked) == binomial.MOST == 100_000
        assert binomial.find_first_proving(lambda n: bool(asked.append(n)), 60_000) is None
        assert max(asked) == binomial.MOST

    @pytest.mark.parametrize("least", [60, 119, 240])
    def test_nothing_beyond_twice_the_first_is_asked(self, least: int) -> None:
        asked = [0]
        binomial.find_first_proving(lambda n: bool(asked.append(n)) or n >= least, 59)
        assert max(asked) < 2 * least
