"""Contestants in turns: the order of bursts and the life of processes. Workers are fakes."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.core.trial import Burst
from ortune.core.workload import Span
from ortune.measurement.job import Failure
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.pairs import BaselineFailed, Effort, fresh_pairs
from ortune.measurement.timing.turns import (
    StartupTimes,
    WarmTimes,
    iterate_blocks,
    request_burst,
    size_bursts,
    start_in_turn,
    warm_up,
)

SIZE = Span(0, 5, 2)
MS = 1_000_000
EFFORT = Effort(min_blocks=3, max_blocks=3, seconds=60)


class Fake:
    """A worker that writes down what it is asked; it fails at `fails`."""

    def __init__(self, name: str, diary: list[str], fails: str = "") -> None:
        self.name, self.diary, self.fails = name, diary, fails

    def __enter__(self) -> Fake:
        self.diary.append(f"{self.name} starts")
        return self

    def __exit__(self, *_: object) -> None:
        self.diary.append(f"{self.name} ends")

    def ask(self, do: str, *, runs: int = 0, **_: Any) -> dict[str, Any]:
        if do == self.fails:
            worker: Any = self
            raise WorkerFailed(Failure(f"{self.name} died", "command"), worker)
        if do in ("load", "first"):
            self.diary.append(f"{self.name} {do}")
        return {
            "latency_ns": [10_000_000] * runs,
            "waited": [0.0] * runs,
            "spent_ns": 200_000_000,
            "alike": True,
            "load_ns": 3,
            "first_ns": 2,
            "peak_rss": 1,
            "placement": {"CPU": 4},
        }


def bursts(diary: list[tuple[str, Span]], name: str, size: Span) -> Burst:
    diary.append((name, size))
    return Burst((size.at,), (0.0,), 2)


def order(diary: list[tuple[str, Span]]) -> str:
    return "".join(name for name, _ in diary)


def test_a_block_goes_there_and_back_and_everyone_walks_at_his_own_pace() -> None:
    diary: list[tuple[str, Span]] = []
    sizes = {"A": Span(0, 5, 2, 6), "B": Span(0, 7, 1, 6), "C": Span(0, 1, 1, 6)}
    two = list(islice(iterate_blocks(sizes, lambda one, size: bursts(diary, one, size)), 2))
    assert order(diary) == "ABCCBA" * 2
    places = {name: [size.at for one, size in diary if one == name] for name in "ABC"}
    assert places == {"A": [0, 10, 20, 30], "B": [0, 7, 14, 21], "C": [0, 1, 2, 3]}
    assert [found["B"].latency_ns for found in two] == [(0, 7), (14, 21)]
    assert all(len(one.waited) == len(one.latency_ns) for found in two for one in found.values())
    assert all(size.total == sizes[name].total for name, size in diary)


def test_a_stretch_settles_once() -> None:
    diary: list[tuple[str, Span]] = []
    sizes = {"A": Span(0, 2, 1, 6), "B": Span(0, 20, 1, 4)}
    list(islice(iterate_blocks(sizes, lambda one, size: bursts(diary, one, size)), 3))
    told = [f"{name}{size.drop}" for name, size in diary]
    assert " ".join(told) == "A6 B4 B1 A6 A0 B4 B1 A6 A0 B4 B1 A6"


def test_who_fails_drops_out_and_the_others_go_on() -> None:
    diary: list[tuple[str, Span]] = []

    def timed(one: str, size: Span) -> Burst | None:
        return None if one == "B" and size.at == 10 else bursts(diary, one, size)

    found = list(islice(iterate_blocks(dict.fromkeys("ABC", SIZE), timed), 2))
    assert [sorted(block) for block in found] == [["A", "C"], ["A", "C"]]
    assert order(diary) == "ABCCA" + "ACCA"


def test_who_fails_on_the_way_there_is_not_asked_on_the_way_back() -> None:
    asked: list[str] = []

    def timed(one: str, size: Span) -> Burst | None:
        asked.append(one)
        return None if one == "B" else bursts([], one, size)

    (found,) = islice(iterate_blocks(dict.fromkeys("ABC", SIZE), timed), 1)
    assert sorted(found) == ["A", "C"]
    assert "".join(asked) == "ABCCA"


def test_entries_that_must_match_fit_the_time_of_the_slowest() -> None:
    """The quicker one says how many runs make an entry and settle."""
    sizes = size_bursts({"A": WarmTimes(40 * MS), "B": WarmTimes(10 * MS)}, 0.2)
    assert sizes == dict.fromkeys("AB", Span(0, 5, 1, 9))
    sizes = size_bursts({"A": WarmTimes(MS // 10), "B": WarmTimes(2 * MS)}, 0.2)
    assert sizes == dict.fromkeys("AB", Span(0, 10, 10, 108))
    sizes = size_bursts({"A": WarmTimes(100 * MS), "B": WarmTimes(99 * MS)}, 0.2)
    assert sizes == dict.fromkeys("AB", Span(0, 2, 1, 8))


def test_one_long_run_settles_a_stretch() -> None:
    sizes = size_bursts({"A": WarmTimes(100 * MS, True), "B": WarmTimes(99 * MS, True)}, 0.2)
    assert sizes == {"A": Span(0, 2, 1, 1), "B": Span(0, 2, 1, 8)}


TIMES = st.integers(1, 2_000_000_000)


@settings(deadline=None)
@given(one=TIMES, two=TIMES, seconds=st.floats(0.05, 1))
def test_every_side_runs_by_time(one: int, two: int, seconds: float) -> None:
    sizes = size_bursts({"A": WarmTimes(one, True), "B": WarmTimes(two, True)}, seconds)
    for ns, size in ((one, sizes["A"]), (two, sizes["B"])):
        entry = ns * size.each
        assert size.at == 0 and size.runs >= 2
        assert size.runs == 2 or (size.runs * entry <= 1e9 * seconds < (size.runs + 1) * entry)
        assert size.each == 1 or entry <= 1_000_000
        assert size.drop == (1 if ns >= 100 * MS else 8 + 10_000_000 // ns)


@settings(deadline=None)
@given(one=TIMES, two=TIMES, alike=st.booleans())
def test_entries_that_must_match_are_as_many_on_both_sides(
    one: int, two: int, alike: bool
) -> None:
    sizes = size_bursts({"A": WarmTimes(one, alike), "B": WarmTimes(two, False)}, 0.2)
    assert (
        sizes["A"]
        == sizes["B"]
        == size_bursts({"B": WarmTimes(two), "A": WarmTimes(one)}, 0.2)["A"]
    )


@pytest.mark.parametrize(("runs", "dropped"), [(7, 0), (8, 1), (15, 1), (40, 1)])
def test_within_a_stretch_one_run_is_dropped_of_eight_or_more(runs: int, dropped: int) -> None:
    diary: list[tuple[str, Span]] = []
    list(
        islice(
            iterate_blocks({"A": Span(0, runs, 1, 9)}, lambda one, size: bursts(diary, one, size)),
            2,
        )
    )
    assert [size.drop for _, size in diary] == [9, dropped, dropped, dropped]


class Runs:
    """A worker whose runs take these times, the last one for ever."""

    def __init__(self, *ns: int, spent: int | None = None) -> None:
        self.ns, self.spent, self.ran = ns, spent, 0
        self.asked: list[dict[str, int]] = []

    def ask(self, do: str, **span: int) -> dict[str, Any]:
        assert do == "burst"
        self.asked.append(span)
        taken = [self.ns[min(self.ran + k, len(self.ns) - 1)] for k in range(span["runs"])]
        self.ran += span["runs"]
        spent = sum(taken) if self.spent is None else self.spent
        waited = [0.5] * len(taken)
        return {"latency_ns": taken, "waited": waited, "spent_ns": spent, "alike": len(taken) > 2}


@pytest.mark.parametrize(
    ("worker", "asked", "found"),
    [
        (Runs(75 * MS), [2], WarmTimes(75 * MS, False)),
        (Runs(90 * MS, 110 * MS), [2], WarmTimes(100 * MS, False)),
        (Runs(74 * MS), [2, 2], WarmTimes(74 * MS, False)),
        (Runs(10 * MS), [2, 3, 3, 3, 3, 3], WarmTimes(10 * MS, True)),
        (Runs(10_000), [2, *[500] * 30], WarmTimes(10_000, True)),
        (Runs(60 * MS, 20 * MS, 10 * MS), [2, 2, 3, 3], WarmTimes(10 * MS, True)),
        (Runs(5 * MS, 10 * MS), [2, *[7] * 2], WarmTimes(10 * MS, True)),
        (Runs(0, spent=100 * MS), [2, 500], WarmTimes(1, True)),
    ],
)
def test_a_side_is_warm_after_150_milliseconds(
    worker: Runs, asked: list[int], found: WarmTimes
) -> None:
    """In bursts of a quarter of that; what the last burst took is a run's time."""
    side: Any = worker
    assert warm_up(side) == found
    assert [(one["at"], one["runs"]) for one in worker.asked] == [(0, runs) for runs in asked]


def test_a_burst_is_what_was_asked_for() -> None:
    worker: Any = Runs(3, 4, 5)
    assert request_burst(worker, Span(7, 3, 2, 6)) == Burst((3, 4, 5), (0.5,) * 3, 2, True)
    assert worker.asked == [{"at": 7, "runs": 3, "each": 2, "drop": 6}]


def test_a_process_is_ready_before_the_next_starts() -> None:
    diary: list[str] = []
    with start_in_turn(lambda: Fake("A", diary), lambda: Fake("B", diary)) as found:  # type: ignore[arg-type, return-value]
        assert [started for _, started in found] == [StartupTimes(3, 2, 1, {"CPU": 4})] * 2
    assert diary == [
        *("A starts", "A load", "A first", "B starts", "B load", "B first"),
        *("B ends", "A ends"),
    ]


def fresh(diary: list[str], count: int, one: str = "", two: str = "", **more: Any) -> list[Any]:
    start: Any = lambda name, fails: lambda: Fake(name, diary, fails)  # noqa: E731
    return list(fresh_pairs(start("A", one), start("B", two), count, EFFORT, **more))


def test_every_pair_has_processes_of_its_own() -> None:
    diary: list[str] = []
    found = fresh(diary, 2)
    assert [len(pair.pair.blocks) for pair in found] == [3, 3]
    assert diary.count("A starts") == diary.count("B ends") == 2


def test_the_first_pair_may_take_a_baseline_that_runs() -> None:
    diary: list[str] = []
    running: Any = Fake("L", diary)
    found = fresh(diary, 2, first=running)
    assert found[0].baseline is running
    assert diary.count("A starts") == 1 and diary.count("B starts") == 2
    assert "L ends" not in diary


@pytest.mark.parametrize("do", ["load", "burst"])
def test_whose_fault_it_was_is_told(do: str) -> None:
    diary: list[str] = []
    with pytest.raises(BaselineFailed):
        fresh(diary, 1, one=do)
    with pytest.raises(WorkerFailed, match="B died") as caught:
        fresh(diary, 1, two=do)
    assert not isinstance(caught.value, BaselineFailed)
    assert diary.count("A starts") == diary.count("A ends") == 2


def test_sides_take_turns_in_who_starts_first() -> None:
    diary: list[str] = []
    found = fresh(diary, 3)
    begun = [entry for entry in diary if entry.endswith(("starts", "load"))]
    there = ["A starts", "B starts", "A load", "B load"]
    back = ["B starts", "A starts", "B load", "A load"]
    assert begun == there + back + there
    assert [pair.baseline.name for pair in found] == ["A"] * 3
