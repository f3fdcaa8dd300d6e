"""Paired timing: who runs when. Workers are fakes that write down what they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.core.trial import Block, Burst, Pair
from ortune.core.workload import Span
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.measurement.workloads.latency import Latency


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
    pair = time_pair(one, two, Effort(min_blocks=3, max_blocks=3, seconds=60))
    assert len(pair.blocks) == 3
    timed = diary[2:]
    changes = [(a, b) for a, b in pairwise(timed) if a[0] != b[0]]
    assert changes and all(before[1] == "wait_idle" for before, _ in changes)
    bursts = [(name, at) for name, do, at in timed if do == "burst"]
    assert "".join(name for name, _ in bursts) == "ABBA" * 3
    samples = {name: sorted(at for n, at in bursts if n == name) for name in "AB"}
    assert samples["A"] == samples["B"], "both sides run the same samples"


def test_a_side_runs_by_time_where_entries_are_alike() -> None:
    diary: list[tuple[str, str, int]] = []
    one: Any = Asked("A", 40_000_000, diary, alike=True)
    two: Any = Asked("B", 10_000_000, diary, alike=True)
    pair = time_pair(one, two, Effort(min_blocks=3, max_blocks=3, seconds=60, burst=0.2))
    assert [len(block.baseline.latency_ns) for block in pair.blocks] == [10] * 3
    assert [len(block.candidate.latency_ns) for block in pair.blocks] == [40] * 3
    assert stats.latency_ratio([pair]).value == pytest.approx(0.25)


class Cached:
    """A worker whose runs after a switch are slower, as the other's weights lie in the cache.

    Run k of a stretch takes `ns` times one plus `cold[k]`; the workload is the real one.
    """

    last: Any = None

    def __init__(self, ns: int, cold: Sequence[float]) -> None:
        self.ns, self.cold, self.now, self.ran = ns, cold, 0, 0

    def ask(self, do: str, **span: int) -> dict[str, Any]:
        if do == "wait_idle":
            return {}
        if Cached.last is not self:
            self.ran, Cached.last = 0, self
        before = self.now
        rig: Any = SimpleNamespace(lanes=[self])
        found = Latency().drive(rig, Span(**span))
        told = {"latency_ns": found.latency_ns, "waited": found.waited, "alike": True}
        return told | {"spent_ns": self.now - before}

    def calls(self, position: int) -> list[tuple[Any, Any]]:
        return [(self, {})]

    def run(self, feeds: Any) -> None:
        extra = self.cold[self.ran] if self.ran < len(self.cold) else 0.0
        self.now += round(self.ns * (1 + extra))
        self.ran += 1

    def clock(self) -> int:
        return self.now

    def waited(self) -> int:
        return 0


@settings(deadline=None)
@given(
    base=st.integers(1, 300),
    ratio=st.floats(0.1, 1.2),
    cold=st.floats(0, 1.5),
    kept=st.floats(0, 0.5),
    burst=st.sampled_from([0.06, 0.1, 0.15]),
)
def test_a_ratio_by_turns_is_that_of_uninterrupted_loops(
    base: int, ratio: float, cold: float, kept: float, burst: float
) -> None:
    """Only the candidate's weights fit the cache; each run brings back most of what is missing,
    one of 100 ms all of it."""
    one: Any = Cached(base * 1_000_000, ())
    ns = round(base * ratio * 1_000_000)
    left = kept if ns * (1 + cold) < 100_000_000 else 0.0
    two: Any = Cached(ns, [cold * left**k for k in range(20)])
    effort = Effort(min_blocks=4, max_blocks=4, seconds=0, decide=False, burst=burst)
    assert stats.latency_ratio([time_pair(one, two, effort)]).value == pytest.approx(
        ratio, rel=0.02
    )


class Varied(Asked):
    """A worker whose first two samples are long and whose others take a tenth."""

    def ask(self, do: str, *, at: int = 0, runs: int = 0, **more: Any) -> dict[str, Any]:
        answer = super().ask(do, at=at, runs=runs, **more)
        places = range(at, at + runs)
        answer["latency_ns"] = [self.ns if place % 32 < 2 else self.ns // 10 for place in places]
        answer["spent_ns"] = sum(answer["latency_ns"])
        return answer


def test_warm_up_runs_of_samples_that_differ_are_compared_sample_by_sample() -> None:
    seen: list[tuple[float, float | None]] = []

    def stop(pair: Any, done: float | None = None) -> str:
        seen.append((stats.latency_ratio([pair]).value, done))
        return ""

    one: Any = Varied("A", 10_000_000, [])
    two: Any = Varied("B", 5_000_000, [])
    time_pair(one, two, Effort(min_blocks=3, max_blocks=3, seconds=60, stop=stop))
    assert seen[0] == (pytest.approx(0.5), 0)


class Waking(Asked):
    """A worker whose first two runs take what is given, and all others 10 ms."""

    def __init__(self, first: Sequence[int], alike: bool) -> None:
        super().__init__("W", 10_000_000, [], alike)
        self.first = first

    def ask(self, do: str, *, at: int = 0, runs: int = 0, **more: Any) -> dict[str, Any]:
        answer = super().ask(do, at=at, runs=runs, **more)
        return answer | {"latency_ns": list(self.first)} if runs == 2 else answer


@pytest.mark.parametrize(
    ("alike", "base", "candidate", "compared"),
    [
        (True, (9_000_000, 7_000_000), (6_000_000, 4_000_000), (8_000_000, 4_000_000)),
        (True, (9_000_000, 7_000_000), (4_000_000, 6_000_000), (8_000_000, 4_000_000)),
        (False, (9_000_000, 8_000_000), (6_000_000, 2_000_000), (8_000_000, 2_000_000)),
        (False, (9_000_000, 3_000_000), (3_000_000, 2_000_000), (9_000_000, 3_000_000)),
        (False, (2_000_000, 9_000_000), (4_000_000, 6_000_000), (9_000_000, 6_000_000)),
        (False, (9_000_000, 0), (6_000_000, 2_000_000), (9_000_000, 6_000_000)),
        (True, (9_000_000, 7_000_000), (0, 6_000_000), (8_000_000, 1)),
    ],
)
def test_a_warm_up_run_is_the_candidates_best_beside_a_warm_one_or_one_of_its_sample(
    alike: bool,
    base: tuple[int, int],
    candidate: tuple[int, int],
    compared: tuple[int, int],
) -> None:
    """What was stopped then has these two runs; of a warm mean it is not known what waited."""
    one, two = Waking(base, alike), Waking(candidate, alike)
    sides: Any = one, two
    found = time_pair(*sides, Effort(stop=lambda pair, done=None: "enough"))
    waited = (-1.0 if alike else 0.0, 0.0)
    runs = [
        Burst((ns,), (share,), 1, alike=True) for ns, share in zip(compared, waited, strict=True)
    ]
    assert found == Pair((Block(*runs),))
