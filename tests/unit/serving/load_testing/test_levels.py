"""Levels in turns, repeats that disagree, the knee, limits: decisions over scripted levels."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.core.errors import BadSettings
from ortune.serving.load_testing import levels
from ortune.serving.load_testing.levels import Level, Load, Run
from ortune.serving.load_testing.requests import PercentileLimit

MS = 1_000_000


def run_of(
    load: Load,
    ms: float,
    *,
    rate: float = 0.0,
    count: int = 1000,
    errors: Mapping[str, int] | None = None,
    busy: float = 0.2,
    late_ms: float = 0.0,
) -> Run:
    """A run of equal latencies; in a closed loop the rate follows from them."""
    rate = rate or load.concurrency * 1e3 / ms
    return Run(
        load=load,
        latency_ns=(round(ms * MS),) * count,
        late_ns=(round(late_ms * MS),) * count if load.is_open else (),
        errors=errors or {},
        examples={},
        elapsed_s=count / rate,
        client_cpu_s=0.1,
        client_busy=busy,
    )


def callers(count: int) -> Load:
    return Load(count, requests=1000)


def once(load: Load, ms: float, **more: object) -> Level:
    return Level(load, (run_of(load, ms, **more),))  # type: ignore[arg-type]


def test_repeats_share_requests_and_time_and_have_their_own_arrivals() -> None:
    asked: list[Load] = []
    told: list[tuple[int, int]] = []

    def measure(load: Load) -> Level:
        asked.append(load)
        return Level(load, (run_of(load, 10.0, rate=50.0),))

    loads = [Load(rate=50, seconds=4), Load(rate=100, seconds=4)]
    found = levels.sweep_loads(loads, 2, measure, lambda *one: told.append(one))
    assert [(one.rate, one.seconds, one.seed) for one in asked] == [
        (50, 2, 0),
        (100, 2, 0),
        (100, 2, 1),
        (50, 2, 1),
    ]
    assert [str(one.load) for one in found] == ["50 requests/s", "100 requests/s"]
    assert [len(one.runs) for one in found] == [2, 2]
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_the_knee_is_the_level_with_most_power() -> None:
    """Batching answers more up to eight callers; beyond, only latency grows."""
    curve = [(1, 10.0), (2, 12.0), (4, 14.0), (8, 18.0), (16, 40.0), (32, 80.0)]
    found = [once(callers(count), ms) for count, ms in curve]
    assert levels.find_knee(found) == 3
    assert levels.find_fastest(found) == 3
    assert levels.find_knee(found[:1]) is None
    alone = [once(callers(count), 10.0 * count) for count in (1, 2, 4)]
    assert levels.find_knee(alone) == 0, "who computes one at a time gains nothing by more callers"


def test_levels_with_errors_or_a_growing_queue_are_beyond_the_knee() -> None:
    found = [once(callers(1), 10.0), once(callers(2), 10.0, errors={"503": 1})]
    assert levels.find_knee(found) == 0
    rates = [Load(rate=one, seconds=10) for one in (50.0, 400.0)]
    behind = [once(rates[0], 10.0, rate=50.0), once(rates[1], 10.0, rate=200.0)]
    assert [one.keeps_up for one in behind] == [True, False]
    assert levels.find_knee(behind) == 0
    assert "falls behind: 199.8 of" in " ".join(levels.list_remarks(behind, processes=1, shared=0))


def test_no_answer_is_no_level_and_no_throughput() -> None:
    none = [once(callers(1), 1.0, count=0, errors={"connection refused": 3})] * 2
    assert levels.find_knee(none) is None
    assert levels.find_fastest(none) is None
    assert none[0].rate == 0
    load = callers(4)
    level = Level(load, (Run(load, (MS,) * 100, (), {"503": 900}, {}, 1.0, 0.1, 0.2),))
    assert (level.rate, level.answer_count, level.failure_count, level.requests) == (
        100,
        100,
        900,
        1000,
    )
    assert not level.keeps_up


def test_percentiles_without_enough_answers_are_refused() -> None:
    few, many = once(callers(1), 1.0, count=999), once(callers(1), 1.0, count=1000)
    assert few.compute_percentile(99) is None
    assert many.compute_percentile(99) == MS
    assert few.compute_percentile(95) == MS
    assert once(callers(1), 1.0, count=1).compute_percentile(50) == MS


def test_repeats_that_disagree_are_told() -> None:
    load = callers(4)
    calm = Level(load, (run_of(load, 10.0), run_of(load, 10.5)))
    torn = Level(load, (run_of(load, 10.0), run_of(load, 13.0)))
    assert calm.describe_disagreement() == ""
    assert torn.describe_disagreement() == "requests/s 400, 307.7; p50 in ms 10, 13"
    (said,) = levels.list_remarks([torn], processes=1, shared=0)
    assert said.startswith("concurrency 4: its repeats do not agree")


def test_what_a_reader_must_know() -> None:
    def remarks(level: Level, **how: Any) -> list[str]:
        return levels.list_remarks([level], **{"processes": 1, "shared": 0} | how)

    busy, calm = once(callers(32), 1.0, busy=0.97), once(callers(1), 1.0)
    (said,) = remarks(busy)
    assert "the client is the limit" in said and "97 % of a CPU" in said and "--clients 2" in said
    load = Load(rate=100, seconds=10)
    (said,) = remarks(once(load, 10.0, rate=100.0, late_ms=5.0))
    assert "sent 5.0 ms or more after" in said
    assert not remarks(once(load, 100.0, rate=100.0, late_ms=5.0))
    assert "share 2 CPUs" in remarks(calm, shared=2)[0]
    assert "one of 2 server processes" in remarks(calm, servers=2)[0]
    limit = PercentileLimit.parse("p99.9<=20ms")
    assert "p99.9<=20ms holds is not known" in remarks(calm, limit=limit)[0]


def test_a_limit_needs_answers_and_no_errors() -> None:
    limit = PercentileLimit.parse("p99<=20ms")
    assert str(limit) == "p99<=20ms"
    assert once(callers(1), 19.0).keeps_limit(limit) is True
    assert once(callers(1), 21.0).keeps_limit(limit) is False
    assert once(callers(1), 19.0, count=900).keeps_limit(limit) is None
    assert once(callers(1), 19.0, errors={"503": 1}).keeps_limit(limit) is False
    assert once(callers(1), 19.0, count=0).keeps_limit(limit) is False


@pytest.mark.parametrize(
    ("text", "percentile", "ns"),
    [("p99<=20ms", 99, 20e6), ("p50 <= 800us", 50, 8e5), ("p99.9<1.5s", 99.9, 1.5e9)],
)
def test_limits_are_read(text: str, percentile: float, ns: float) -> None:
    found = PercentileLimit.parse(text)
    assert (found.percentile, found.limit_ns) == (percentile, pytest.approx(ns))


@pytest.mark.parametrize("text", ["", "20ms", "p99<=20", "p10<=20ms", "p99>=20ms", "p99<=0ms"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(BadSettings, match="limit"):
        PercentileLimit.parse(text)


def test_a_load_has_one_kind_and_an_end() -> None:
    for wrong in (
        {"concurrency": 1, "rate": 2.0, "seconds": 1.0},
        {"seconds": 1.0},
        {"rate": 1.0},
    ):
        with pytest.raises(BadSettings):
            Load(**wrong)  # type: ignore[arg-type]


def test_a_schedule_keeps_its_rate_exactly() -> None:
    schedule = Load(rate=100, seconds=2).draw_schedule()
    assert len(schedule) == 200
    assert schedule[-1] == 2_000_000_000
    assert schedule == Load(rate=100, seconds=2).draw_schedule()
    assert schedule != Load(rate=100, seconds=2, seed=1).draw_schedule()
    assert len(Load(rate=100, requests=500).draw_schedule()) == 500


@given(st.integers(1, 64), st.integers(0, 1000), st.integers(1, 8))
def test_callers_and_requests_are_shared_out(count: int, requests: int, parts: int) -> None:
    load = Load(count, requests=requests, seconds=0 if requests else 1)
    shares = load.split_callers(parts)
    assert sum(one.concurrency for one in shares) == count
    assert sum(one.requests for one in shares) == requests
    assert all(one.concurrency > 0 for one in shares)
    assert not requests or all(one.requests > 0 for one in shares)
