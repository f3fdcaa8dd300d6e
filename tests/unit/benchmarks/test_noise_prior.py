"""The prior in the code is the fit of the committed records."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from benchmarks.noise import noise_prior
from benchmarks.noise.clock import found, plain
from benchmarks.result_files import find_results

from ortune.core.trial import Block, Burst, Pair
from ortune.measurement.timing import stats


def test_code_and_file_hold_what_the_records_give() -> None:
    found = noise_prior.fitted()
    assert found == json.loads(noise_prior.WRITTEN.read_text())
    assert (found["PAIR_SD"], found["PRIOR_DF"]) == (stats.PAIR_SD, stats.PRIOR_DF)
    assert found["OCCASION_SD"] == stats.OCCASION_SD
    for one in (*found["spreads of pairs"], *found["repeats"]):
        assert find_results(one["file"].removesuffix(".json")) and one["machine"]


def test_the_fit_finds_the_prior_that_variances_were_drawn_from() -> None:
    rng = np.random.default_rng(0)
    true_sd, true_df, own = 0.01, 4.0, 8
    variances = true_sd**2 * true_df / rng.chisquare(true_df, 3000)
    seen = variances * rng.chisquare(own, 3000) / own
    sd, df = noise_prior.smyth(list(seen), [own] * 3000)
    assert sd == pytest.approx(true_sd, rel=0.05) and df == pytest.approx(true_df, rel=0.15)


@pytest.mark.parametrize(("occasions", "most"), [(12, 2.5), (500, 1.2)])
def test_the_limit_of_what_occasions_do_holds_and_does_not_grow_with_their_number(
    occasions: int, most: float
) -> None:
    rng = np.random.default_rng(1)
    found = [noise_prior.at_most(list(rng.chisquare(1, occasions))) for _ in range(1000)]
    assert np.mean(np.asarray(found) >= 1) == pytest.approx(0.95, abs=0.02)
    assert np.median(found) < most
    assert noise_prior.at_most([-5.0, 2.0]) == noise_prior.at_most([0.0, 2.0])


def test_equal_variances_are_a_firm_prior() -> None:
    sd, df = noise_prior.smyth([1e-4] * 30, [8.0] * 30)
    assert sd == pytest.approx(0.01, rel=0.15) and df > 20


@pytest.mark.parametrize(
    ("x", "first", "second"),
    [
        (0.5, -1.9635100, math.pi**2 / 2),
        (1.0, -0.5772157, math.pi**2 / 6),
        (10.0, 2.2517526, 0.1051663),
    ],
)
def test_the_derivatives_of_log_gamma(x: float, first: float, second: float) -> None:
    assert noise_prior.digamma(x) == pytest.approx(first, abs=1e-6)
    assert noise_prior.trigamma(x) == pytest.approx(second, abs=1e-6)


# When the clock and uninterrupted loops agree.


def pair(ratio: float) -> Pair:
    base, other = (Burst((ns,) * 9, (0.0,) * 9, 1, True) for ns in (10**6, round(ratio * 10**6)))
    return Pair((Block(base, other),) * 4)


@pytest.mark.parametrize(
    ("loops", "agree"),
    [
        ((0.50, 0.50, 0.50, 0.50), True),
        ((0.509, 0.509, 0.509, 0.509), True),
        ((0.56, 0.56, 0.56, 0.56), False),
        ((0.42, 0.60, 0.46, 0.62), True),
    ],
)
def test_they_agree_within_2_percent_or_their_intervals(
    loops: tuple[float, ...], agree: bool
) -> None:
    told = found([pair(0.5)] * 4, [pair(ratio) for ratio in loops])
    assert told["agree"] is agree
    assert told["turns"][0] == pytest.approx(0.5)
    assert told["each"]["loops"] == pytest.approx(list(loops))


def test_loops_have_no_prior() -> None:
    assert plain([0.1, 0.1]).low == pytest.approx(plain([0.1, 0.1]).high)
    assert plain([0.1]).low == 0
