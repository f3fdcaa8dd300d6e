"""Paired timing: who runs when. Workers are fakes that write down what they are asked."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair


class Asked:
    """A worker whose runs take `ns`, and a diary of both sides."""

    def __init__(
        self, name: str, ns: int, diary: list[tuple[str, str, int]], alike: bool = False
    ) -> None:
        self.name, self.ns, self.diary, self.alike = name, ns, diary, alike

    def ask(self, do: str, *, at: int = 0, runs: int = 0, **_: Any) -> dict[str, Any]:
        self.diary.append((self.name, do, at))
        return {
            "latency_ns": [self.ns] * runs,
            "waited": [0.0] * runs,
            "spent_ns": max(200_000_000, self.ns * runs),
            "alike": self.alike,
        }


def test_no_side_begins_while_the_other_may_still_spin() -> None:
    diary: list[tuple[str, str, int]] = []
    one: Any = Asked("A", 10_000_000, diary)
    two: Any = Asked("B", 5_000_000, diary)
    pair = time_pair(one, two, Effort(min_blocks=3, max_blocks=3, seconds=0))
    assert len(pair.blocks) == 3
    timed = diary[2:]
    changes = [(a, b) for a, b in pairwise(timed) if a[0] != b[0]]
    assert changes and all(before[1] == "rest" for before, _ in changes)
    bursts = [(name, at) for name, do, at in timed if do == "burst"]
    assert "".join(name for name, _ in bursts) == "ABBA" * 3
    samples = {name: sorted(at for n, at in bursts if n == name) for name in "AB"}
    assert samples["A"] == samples["B"], "both sides run the same samples"


def test_a_side_runs_by_time_where_entries_are_alike() -> None:
    diary: list[tuple[str, str, int]] = []
    one: Any = Asked("A", 40_000_000, diary, alike=True)
    two: Any = Asked("B", 10_000_000, diary, alike=True)
    pair = time_pair(one, two, Effort(min_blocks=3, max_blocks=3, seconds=0, burst=0.2))
    assert [len(block.baseline.latency_ns) for block in pair.blocks] == [10] * 3
    assert [len(block.candidate.latency_ns) for block in pair.blocks] == [40] * 3
    assert stats.ratio([pair]).value == pytest.approx(0.25)
