"""When a lane has settled. Runs take what a script says."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.core.workload import Span
from ortune.measurement.arrivals.lanes import settle_lane

MS = 1_000_000


class Scripted:
    """A lane and its only session: run k takes `taken[k]`, and the last value ever after."""

    def __init__(self, taken: Sequence[int]) -> None:
        self.taken, self.now, self.ran, self.places = taken, 0, 0, set[int]()

    def calls(self, position: int) -> list[tuple[Any, Any]]:
        self.places.add(position)
        return [(self, {})]

    def run(self, feeds: Any) -> None:
        self.now += self.taken[min(self.ran, len(self.taken) - 1)]
        self.ran += 1

    def clock(self) -> int:
        return self.now


def dropped(taken: Sequence[int], most: int = 8) -> int:
    lane: Any = Scripted(taken)
    count = settle_lane(lane, Span(3, 5, 1, most))
    assert count == lane.ran and lane.places <= {3}
    return count


def test_a_cold_run_is_followed_by_one_that_shows_what_is_warm() -> None:
    assert dropped([50 * MS, 30 * MS, 30 * MS]) == 3
    assert dropped([30 * MS, 30 * MS]) == 2
    assert dropped([30 * MS, 31 * MS]) == 2


def test_a_slow_approach_is_followed_to_its_end_or_the_limit() -> None:
    falling = [round(100 * MS * 0.9**k) for k in range(20)]
    assert dropped(falling) == 8
    assert dropped([*falling[:4], falling[3]]) == 5


def test_short_runs_take_ten_milliseconds() -> None:
    assert dropped([MS // 10], most=200) == 100


def test_nothing_is_dropped_where_nothing_may_be() -> None:
    assert dropped([MS], most=0) == 0
    assert dropped([40 * MS], most=1) == 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12), st.integers(0, 10))
def test_the_last_dropped_run_is_no_quicker_or_the_limit_is_reached(
    taken: list[int], most: int
) -> None:
    count = dropped(taken, most)
    runs = [taken[min(k, len(taken) - 1)] for k in range(count)]
    assert count <= most
    if count < most:
        assert sum(runs) >= 10 * MS and runs[-1] > 0.98 * min(runs[:-1])
    for k in range(1, len(runs) - 1):
        assert runs[k] <= 0.98 * min(runs[:k]) or sum(runs[: k + 1]) < 10 * MS
