"""Paired timing: who runs when. Workers are fakes that write down what they are asked."""

import time
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.core.workload import Span
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, claim_effort, is_pair_complete, time_pair
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
    alike: bool, base: tuple[int, int], candidate: tuple[int, int], compared: tuple[int, int]
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


# How long a pair is timed: until the answer is clear or the seconds are spent.


BURST_S = 0.15


class Clock:
    """Time that passes only while a burst is timed."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """A worker of a fixed latency; each burst takes its time."""

    def __init__(
        self, clock: Clock, ns: int, spread: float = 0.0, seconds: float = BURST_S
    ) -> None:
        self.clock, self.ns, self.spread, self.turn = clock, ns, spread, 0
        self.seconds = seconds

    def ask(self, do: str, *, runs: int = 0, **_: Any) -> dict[str, Any]:
        self.turn += do == "burst"
        self.clock.now += self.seconds * (do == "burst")
        ns = round(self.ns * (1 + self.spread * (-1) ** (self.turn // 2)))
        return {
            "latency_ns": [ns] * runs,
            "waited": [0.0] * runs,
            "spent_ns": 200_000_000,
            "alike": True,
        }


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def blocks(clock: Clock, ratio: float, effort: Effort, spread: float = 0.0) -> int:
    base: Any = Timed(clock, 1_000_000, spread)
    cand: Any = Timed(clock, round(1_000_000 * ratio))
    return len(time_pair(base, cand, effort).blocks)


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.9])
def test_a_clear_gain_ends_it_after_the_fewest_blocks(clock: Clock, ratio: float) -> None:
    assert blocks(clock, ratio, Effort(min_blocks=5, seconds=60)) == 5
    assert blocks(clock, ratio, Effort(min_blocks=7, seconds=60)) == 7


def test_a_hopeless_loss_ends_it_at_three(clock: Clock) -> None:
    assert blocks(clock, 2.0, Effort(min_blocks=8, seconds=60)) == 3
    assert blocks(clock, 2.0, Effort(min_blocks=8, seconds=60, decide=False)) == 24


@pytest.mark.parametrize(("ratio", "count"), [(1.25, 8), (1.45, 3)])
def test_hopeless_is_a_loss_of_three_tenths_at_least(
    clock: Clock, ratio: float, count: int
) -> None:
    assert blocks(clock, ratio, Effort(min_blocks=8, seconds=60)) == count


def test_by_default_a_pair_is_decided_within_four_seconds_or_24_blocks(clock: Clock) -> None:
    assert blocks(clock, 0.5, Effort()) == 4
    assert blocks(clock, 1.0, Effort()) == 7, "4 s, 0.6 s a block"
    assert blocks(clock, 1.0, Effort(seconds=600)) == 24
    assert Effort().burst == BURST_S


def test_a_small_loss_is_timed_as_long_as_a_gain(clock: Clock) -> None:
    assert blocks(clock, 1.15, Effort(min_blocks=6, seconds=60)) == 6


def test_equal_sides_are_timed_until_the_seconds_are_spent(clock: Clock) -> None:
    assert blocks(clock, 1.0, Effort(seconds=5.9)) == 10, "a block takes 0.6 s"
    clock.now = 0.0
    assert blocks(clock, 1.0, Effort(seconds=600.0, max_blocks=24)) == 24


def test_what_is_clear_is_not_stopped_for_where_no_decision_is_wanted(clock: Clock) -> None:
    assert blocks(clock, 0.5, Effort(seconds=600.0, max_blocks=9, decide=False)) == 9


def test_the_fewest_blocks_may_take_twice_the_seconds_and_no_more(clock: Clock) -> None:
    assert blocks(clock, 1.0, Effort(min_blocks=6, seconds=3.0)) == 6
    assert blocks(clock, 1.0, Effort(min_blocks=20, seconds=3.0)) in (10, 11)


def test_a_slow_model_gets_two_blocks(clock: Clock) -> None:
    assert blocks(clock, 1.0, Effort(seconds=0.5)) == 2, "a block takes 0.6 s"
    assert blocks(clock, 1.0, Effort(seconds=0.7)) == 3
    assert blocks(clock, 1.0, Effort(seconds=0.1, decide=False)) == 2
    assert blocks(clock, 1.0, Effort(max_blocks=1, seconds=0.1)) == 1


def test_two_blocks_are_enough_from_twice_the_seconds_on(clock: Clock) -> None:
    """A block takes a second, to the last bit: bursts take a power of two."""

    def taken(seconds: float) -> int:
        base, cand = (Timed(clock, 1_000_000, seconds=0.25) for _ in range(2))
        sides: Any = base, cand
        return len(time_pair(*sides, Effort(seconds=seconds)).blocks)

    assert (taken(1.0), taken(1.125)) == (2, 3)


@pytest.mark.parametrize(
    ("low", "high", "done", "late", "ends"),
    [
        (1.3, 1.35, 3, -1.0, False),
        (1.31, 1.35, 3, -1.0, True),
        (0.8, 0.85, 4, -1.0, True),
        (0.8, 0.85, 3, -1.0, False),
        (0.8, 0.85, 3, 0.9, False),
        (0.8, 0.85, 3, 1.0, True),
        (0.9, 1.1, 4, 0.0, False),
        (0.9, 1.1, 4, 0.1, True),
        (0.95, 1.0, 4, -1.0, False),
        (0.95, 0.99, 4, -1.0, True),
        (1.02, 1.05, 4, -1.0, False),
        (1.03, 1.05, 4, -1.0, True),
        (0.5, 0.54, 4, -1.0, False),
        (0.5, 0.535, 4, -1.0, True),
        (0.5, 0.6, 4, -1.0, False),
    ],
)
def test_a_pair_needs_no_more_only_beyond_each_bound(
    low: float, high: float, done: int, late: float, ends: bool
) -> None:
    effort = Effort(min_blocks=4, seconds=1.0)
    assert is_pair_complete(Interval((low + high) / 2, low, high), done, late, effort) is ends


def test_a_single_block_may_be_all(clock: Clock) -> None:
    assert blocks(clock, 2.0, Effort(max_blocks=1, decide=False)) == 1


def test_wide_intervals_are_not_clear(clock: Clock) -> None:
    assert blocks(clock, 0.9, Effort(seconds=600.0, max_blocks=9), spread=0.2) == 9


def test_a_gain_that_is_known_by_half_is_not_clear(clock: Clock) -> None:
    assert blocks(clock, 0.5, Effort(seconds=600.0, max_blocks=9), spread=0.2) == 9


def test_progress_is_told_from_the_third_block_on(clock: Clock) -> None:
    told: list[tuple[float, int]] = []
    base: Any = Timed(clock, 1_000_000)
    cand: Any = Timed(clock, 500_000)
    time_pair(
        *(base, cand, Effort(min_blocks=5, seconds=60)),
        lambda ratio, done: told.append((round(ratio.value, 6), done)),
    )
    assert told == [(0.5, 3), (0.5, 4), (0.5, 5)]


def test_five_claiming_pairs_take_as_long_as_three_of_a_search() -> None:
    found = claim_effort(4.0)
    assert found.seconds * stats.PAIRS == pytest.approx(12.0)
    assert not found.decide
    assert found.max_blocks == 20


class AskedEffort:
    """A rule that keeps what it was asked, and stops at one of these questions."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.asked: list[float | None] = []
        self.pairs: list[Pair] = []

    def __call__(self, pair: Pair, done: float | None = None) -> str:
        self.asked.append(done)
        self.pairs.append(pair)
        return "enough" if len(self.asked) == self.stop_at else ""


@pytest.mark.parametrize(("stop_at", "taken"), [(1, 1), (2, 1), (3, 1), (4, 2), (99, 6)])
def test_a_rule_may_stop_it_at_a_warm_up_run_a_burst_and_every_block(
    clock: Clock, stop_at: int, taken: int
) -> None:
    rule = AskedEffort(stop_at)
    effort = Effort(max_blocks=6, seconds=60, decide=False, stop=rule)
    assert blocks(clock, 0.5, effort) == taken
    assert rule.asked == [0, 0.5, *[None] * 5][:stop_at], "not asked where it ends in any case"
    run, *rest = [len(pair.blocks[0].candidate.latency_ns) for pair in rule.pairs]
    assert run == 1
    assert all(entries == 2 * rest[0] for entries in rest[1:]), "a block has two bursts a side"


def test_what_was_stopped_is_not_part_of_what_an_effort_is() -> None:
    assert Effort(stop=AskedEffort(1)) == Effort()
    assert repr(Effort(stop=AskedEffort(1))) == repr(Effort())
