"""The walk over settings, its confirmation and what lies next to what, on scripted scores."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ortune.bundle.engine.instances import Serving
from ortune.serving.load_testing.descent import (
    STEP,
    ServingSpace,
    TriedSettings,
    descend_settings,
    estimate_ratio,
    find_sustained_rate,
    requests_needed,
)

SPACE = ServingSpace(cpus=4, threads=4, joins=True, limit_us=20_000)
Score = Callable[[Serving], float]


def walked(
    score: Score, space: ServingSpace = SPACE, pairs: int = 1000
) -> tuple[list[TriedSettings], list[Serving]]:
    """Return what was tried, the best first, and every pair that was asked for."""
    asked: list[Serving] = []

    def pair(one: Serving) -> float | None:
        asked.append(one)
        return score(one) / score(Serving()) if len(asked) <= pairs else None

    return descend_settings(space, Serving(), pair), asked


class TestSpace:
    def test_what_lies_next_to_the_defaults(self) -> None:
        start = Serving()
        assert next(SPACE.list_neighbours(start, "max_batch", 1)) == Serving(max_batch=16)
        assert [one.max_batch for one in SPACE.list_neighbours(start, "max_batch", -1)] == [
            4,
            2,
            1,
        ]
        assert [one.instances for one in SPACE.list_neighbours(start, "instances", 1)] == [2, 4]
        assert not list(SPACE.list_neighbours(start, "instances", -1))
        assert [one.threads for one in SPACE.list_neighbours(start, "threads", -1)] == [2, 1]
        delays = [one.max_delay_us for one in SPACE.list_neighbours(start, "max_delay_us", 1)]
        assert delays == [100, 300, 1000, 3000], "no more than a quarter of the limit"

    def test_what_has_no_effect_is_not_said(self) -> None:
        """So that settings that do the same are the same, and measured once."""
        delayed = Serving(max_delay_us=300)
        assert list(SPACE.list_neighbours(delayed, "max_batch", -1))[-1] == Serving(max_batch=1)
        assert not list(SPACE.list_neighbours(Serving(max_batch=1), "max_delay_us", 1))
        two = Serving(instances=2, threads=1)
        assert list(SPACE.list_neighbours(two, "threads", 1)) == [Serving(instances=2)]
        narrow = ServingSpace(cpus=4, threads=1, joins=True, limit_us=1e6)
        assert [one.threads for one in narrow.list_neighbours(Serving(), "threads", 1)] == [2, 4]
        wide = replace(Serving(), threads=4)
        assert next(narrow.list_neighbours(wide, "instances", 1)) == Serving(
            instances=2, threads=2
        )

    def test_a_model_that_joins_nothing_has_no_batches(self) -> None:
        space = ServingSpace(cpus=2, threads=2, joins=False, limit_us=20_000)
        for name in ("max_batch", "max_delay_us"):
            assert not list(space.list_neighbours(Serving(), name, 1))
        assert space.spell_settings(Serving()) == "1 instance, 2 threads, max_batch 8, delay 0 us"


class TestDescent:
    def test_it_finds_the_best_of_a_smooth_score(self) -> None:
        best = Serving(instances=2, max_batch=32, max_delay_us=300, threads=1)

        def score(one: Serving) -> float:
            far = abs(math.log2(one.instances / 2)) + abs(math.log2(one.max_batch / 32))
            far += abs(math.log2((one.max_delay_us + 100) / 400)) + ((one.threads or 2) - 1)
            return math.exp(-0.1 * far)

        tried, asked = walked(score)
        assert tried[0].settings == best
        assert len(asked) == sum(len(one.ratios) for one in tried) < 30
        assert max(asked.count(one) for one in asked) == 2

    def test_where_nothing_is_better_the_rest_is_tried_once(self) -> None:
        tried, asked = walked(lambda one: 1.0 if one == Serving() else 0.9)
        assert len(asked) == len(set(asked)) == len(tried) == 5
        assert all(one.ratio == pytest.approx(0.9) for one in tried)

    def test_a_lucky_pair_is_asked_again(self) -> None:
        luck = iter([1.2, 0.9])

        def score(one: Serving) -> float:
            return next(luck, 0.9) if one != Serving() else 1.0

        tried, asked = walked(score)
        assert asked[0] == asked[1] and len(asked) == len(tried) + 1
        assert tried[0].ratio == pytest.approx(math.sqrt(1.2 * 0.9))

    def test_what_could_not_be_served_is_the_worst(self) -> None:
        tried, _ = walked(lambda one: 0.0 if one.instances > 1 else 1.0)
        assert [one.ratio for one in tried][-1] == 0.0 and tried[-1].settings.instances == 2

    @pytest.mark.parametrize("pairs", range(6))
    def test_it_ends_with_the_time(self, pairs: int) -> None:
        tried, _ = walked(lambda one: 0.9, pairs=pairs)
        assert len(tried) == min(pairs, 5)
        assert all(one.ratios for one in tried)

    def test_nothing_to_try(self) -> None:
        assert walked(lambda one: 1.0, ServingSpace(1, 1, False, 1e6)) == ([], [])


class TestConfirmed:
    def test_the_interval_holds_as_often_as_it_says(self) -> None:
        rng, held = np.random.default_rng(1), 0
        for _ in range(2000):
            interval = estimate_ratio(np.exp(rng.normal(0.1, 0.05, 6)).tolist())
            held += interval.low <= math.exp(0.1) <= interval.high
        assert 0.935 < held / 2000 < 0.965

    def test_pairs_that_agree_by_chance_prove_little(self) -> None:
        interval = estimate_ratio([1.005] * 3)
        assert interval is not None and interval.low < 1 < interval.high

    @pytest.mark.parametrize("ratios", [[], [1.1], [1.1, 0.0]])
    def test_too_few_say_nothing(self, ratios: list[float]) -> None:
        assert estimate_ratio(ratios) is None


Curve = Callable[[float], float]


def queue(capacity: float, service: float = 1.0) -> Curve:
    """Return a percentile by rate that grows without bound towards a capacity."""

    def at(rate: float) -> float:
        return math.inf if rate >= capacity else service * (1 + rate / (capacity - rate))

    return at


def found(
    curve: Curve, limit: float, start: float, least: float = 0.1, most: float = 1e5
) -> tuple[float, list[float]]:
    """Return the rate and every rate that was asked about."""
    asked: list[float] = []

    def percentile(rate: float) -> float:
        asked.append(rate)
        return curve(rate)

    return find_sustained_rate(percentile, limit, start, least, most), asked


@pytest.mark.parametrize("start", [1.0, 50.0, 74.0, 76.0, 99.0, 400.0])
def test_it_is_found_from_anywhere(start: float) -> None:
    rate, asked = found(queue(100.0), 4.0, start)  # 1 + r / (100 - r) = 4 at r = 75
    assert rate == pytest.approx(75, rel=0.02)
    assert len(asked) <= 14 and min(asked) >= 0.1


def test_near_the_last_answer_little_is_asked() -> None:
    for start in (72.0, 75.0, 78.0):
        assert len(found(queue(100.0), 4.0, start)[1]) <= 3


def test_what_keeps_it_at_no_rate_or_at_every_rate() -> None:
    assert found(lambda rate: 9.0, 4.0, 50.0, least=2.0)[0] == 2.0
    assert found(lambda rate: 1.0, 4.0, 50.0, most=300.0)[0] == 300.0
    assert found(lambda rate: 1.0, 4.0, 500.0, most=300.0)[1] == [300.0]


def test_a_wall_is_not_stepped_over() -> None:
    """Without an answer at all beyond it there is nothing to draw a line to."""
    rate, _ = found(lambda rate: 1.0 if rate < 60 else math.inf, 4.0, 50.0)
    assert 60 / STEP / 1.01 < rate < 60


def test_noise_ends_it_all_the_same() -> None:
    rng, curve = np.random.default_rng(0), queue(100.0)
    rates = []
    for _ in range(200):
        rate, asked = found(lambda rate: curve(rate) * rng.lognormal(0, 0.3), 4.0, 70.0)
        assert len(asked) < 30
        rates.append(rate)
    assert np.median(rates) == pytest.approx(75, rel=0.06)


def test_how_many_requests_tell_a_percentile() -> None:
    assert requests_needed(99, 10) == 1150 and requests_needed(99, 4) == 460
    assert requests_needed(50, 10) == 100 and requests_needed(99.9, 10) == 11_500
