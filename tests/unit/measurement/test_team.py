"""Several workers asked as one: sums, the longest of times, and one window for all."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from ortune.measurement.process import Worker
from ortune.measurement.team import Team


class Scripted:
    """A worker that answers by a script and notes what it was asked."""

    def __init__(self, rate: float, run_ns: int, memory: int | None = 5) -> None:
        self.rate, self.run_ns, self.memory = rate, run_ns, memory
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.closed, self.cache = False, "warm"

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append((do, arguments))
        if do == "load":
            return {"load_ns": self.run_ns, "placement": {"CPU": 2}, "cache": self.cache}
        if do == "first":
            return {"first_ns": self.run_ns, "peak_rss": 7}
        if do == "device":
            return {"compute_ns": [self.run_ns], "gpus": []}
        if do == "footprint":
            return {"rss": 3, "uss": self.memory}
        assert do == "window"
        return {"rates": [self.rate], "runs_ns": [self.run_ns] * 3, "waited": 0.25}


def test_a_burst_is_one_stretch_of_time_for_all() -> None:
    workers = [Scripted(1 / 2_000, 2_000), Scripted(1 / 6_000, 6_000)]
    with Team([lambda one=one: cast(Worker, one) for one in workers]) as team:  # type: ignore[misc]
        workers[1].cache = "cold"
        told = {"load_ns": 6_000, "placement": {"CPU": 2}, "cache": "cold"}
        assert team.ask("load") == told
        assert team.ask("first") == {"first_ns": 6_000, "peak_rss": 14}
        before = time.monotonic_ns()
        burst = team.ask("burst", at=4, runs=3, each=2, drop=8)
        # Rates add up: 1/2000 + 1/6000 a nanosecond is an inference in 1500.
        assert burst["latency_ns"] == [1_500] * 3 and burst["waited"] == [0.25] * 3
        assert burst["spent_ns"] == 3 * 2 * 6_000 and burst["alike"]
        (_, one), (_, two) = workers[0].asked[-1], workers[1].asked[-1]
        assert one == two and one["at"] == 4
        assert one["begin_ns"] > before and one["end_ns"] - one["begin_ns"] == burst["spent_ns"]
        assert team.ask("burst", at=0, runs=10)["spent_ns"] == 4 * 4_000
        details = team.ask("details")["details"]
        assert [one["sessions"] for one in details] == [2, 2]
        assert sorted(details[0]["runs_ns"]) == [2_000] * 3 + [6_000] * 3
        assert team.ask("details") == {"details": []}
    assert all(one.closed for one in workers)


@pytest.mark.parametrize(("memory", "total"), [(4, 9), (None, None)])
def test_what_one_cannot_tell_is_not_told_of_all(memory: int | None, total: int | None) -> None:
    workers = [Scripted(1.0, 1), Scripted(1.0, 1, memory)]
    with Team([lambda one=one: cast(Worker, one) for one in workers]) as team:  # type: ignore[misc]
        assert team.ask("device") == {"compute_ns": [1, 1], "gpus": []}
        assert team.ask("footprint") == {"rss": 6, "uss": total}
