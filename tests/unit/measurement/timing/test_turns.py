"""Contestants in turns: the order of bursts and the life of processes. Workers are fakes."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from typing import Any

import pytest

from ortune.core.trial import Burst
from ortune.core.workload import Span
from ortune.measurement.job import Failure
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.pairs import BaselineFailed, Effort, fresh_pairs
from ortune.measurement.timing.turns import Started, blocks, live, pace, rotated

SIZE = Span(0, 5, 2)
EFFORT = Effort(min_blocks=3, max_blocks=3, seconds=0)


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
            "load_ns": 3,
            "first_ns": 2,
            "peak_rss": 1,
            "placement": {"CPU": 4},
        }


def bursts(diary: list[tuple[str, int]], name: str, at: int) -> Burst:
    diary.append((name, at))
    return Burst((at,), (0.0,), 2)


def test_a_block_goes_there_and_back() -> None:
    diary: list[tuple[str, int]] = []
    two = list(islice(blocks("ABC", SIZE, lambda one, at: bursts(diary, one, at)), 2))
    assert "".join(name for name, _ in diary) == "ABCCBA" * 2
    assert [at for _, at in diary] == [0] * 3 + [10] * 3 + [20] * 3 + [30] * 3
    assert [found["B"].latency_ns for found in two] == [(0, 10), (20, 30)]


def test_each_block_may_begin_with_the_next() -> None:
    diary: list[tuple[str, int]] = []
    for _ in islice(blocks("ABC", SIZE, lambda o, at: bursts(diary, o, at), rotate=True), 3):
        pass
    assert "".join(name for name, _ in diary) == "ABCCBA" + "BCAACB" + "CABBAC"


def test_who_fails_drops_out_and_the_others_go_on() -> None:
    diary: list[tuple[str, int]] = []

    def timed(one: str, at: int) -> Burst | None:
        return None if one == "B" and at == 10 else bursts(diary, one, at)

    found = list(islice(blocks("ABC", SIZE, timed), 2))
    assert [sorted(block) for block in found] == [["A", "C"], ["A", "C"]]
    assert "".join(name for name, _ in diary) == "ABCCA" + "ACCA"


def test_each_contestant_runs_twice_in_a_row_as_often_as_the_others() -> None:
    halves = [rotated([0, 1, 2], turn) for turn in range(6)]
    bursts = [index for half in halves for index in (*half, *half[::-1])]
    again = Counter(a for a, b in pairwise(bursts) if a == b)
    assert again == {0: 2, 1: 2, 2: 2}
    assert rotated([0], 3) == [0]


def test_the_slowest_side_paces_all() -> None:
    assert pace(30_000_000, 100_000) == pace(100_000, 5_000_000, 30_000_000)


def test_a_process_is_ready_before_the_next_starts() -> None:
    diary: list[str] = []
    with live(lambda: Fake("A", diary), lambda: Fake("B", diary)) as found:  # type: ignore[arg-type, return-value]
        assert [started for _, started in found] == [Started(3, 2, 1, {"CPU": 4})] * 2
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
