"""What a plan's requests may take, by the original's."""

import pytest

from ortune.measurement.timing.turns import Deadlines, StartupTimes
from ortune.measurement.workloads.arrivals import Arrivals
from ortune.measurement.workloads.latency import Latency
from ortune.measurement.workloads.throughput import Throughput

MS = 1_000_000


def started(load_ms: int, first_ms: int) -> StartupTimes:
    return StartupTimes(load_ms * MS, first_ms * MS, 1, {})


def test_a_hang_of_a_small_model_costs_less_than_ten_seconds() -> None:
    found = Deadlines.from_baseline(started(200, 12), 1.1, 8 * MS, 1.5, Latency())
    assert found.seconds == {"load": 8.0, "first": 2.0, "burst": 4.0}
    assert found.score_s(8 * MS, 60.0) == 6.0
    assert all(seconds < 10 for seconds in found.seconds.values())


def test_what_the_original_needs_a_plan_may_need_several_times() -> None:
    found = Deadlines.from_baseline(started(2000, 900), 4.0, 250 * MS, 5.0, Latency())
    assert found.seconds == {"load": 20.0, "first": 9.0, "burst": 10.0}
    assert found.score_s(100 * MS, 60.0) == 15.0
    assert found.score_s(500 * MS, 60.0) == 30.0, "a slower plan may take longer"


def test_a_machine_on_which_processes_start_slowly_is_waited_for() -> None:
    assert (
        Deadlines.from_baseline(started(200, 12), 6.0, 8 * MS, 1.5, Latency()).seconds["load"]
        == 12.0
    )


def test_sessions_side_by_side_load_at_the_first_run() -> None:
    found = Deadlines.from_baseline(started(200, 12), 1.1, 300 * MS, 1.5, Throughput(sessions=3))
    assert found.seconds == {"load": 8.0, "first": 18.0, "burst": pytest.approx(36.0)}


def test_how_long_a_burst_of_arrivals_takes_the_workload_knows() -> None:
    assert "burst" not in Deadlines.from_baseline(started(9, 9), 1, 1, 1, Arrivals()).seconds


def test_where_nothing_was_measured_the_usual_limit_holds() -> None:
    assert Deadlines().seconds == {}
    assert Deadlines().score_s(1, 60.0) == 60.0


def test_a_first_run_on_a_device_may_load_kernels_and_plan_convolutions() -> None:
    found = Deadlines.from_baseline(started(200, 12), 1.1, 8 * MS, 1.5, Latency())
    assert found.list_seconds("cpu") == found.seconds
    assert found.list_seconds("gpu") == {**found.seconds, "first": 30.0}
    assert Deadlines().list_seconds("gpu") == {}
