"""Contestants in turns: the order of bursts and the life of processes. Workers are fakes."""

import gzip
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t, trim_mean

from ortune.analysis.tuning.tune import keep_cores_busy
from ortune.backends.cpu import Cpu
from ortune.core.plugins import codec
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.core.workload import Span
from ortune.data import stream
from ortune.measurement.job import Failure
from ortune.measurement.process import Worker, WorkerFailed, single_model_job
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, fresh_pairs, time_pair
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

    def __enter__(self) -> "Fake":
        self.diary.append(f"{self.name} starts")
        return self

    def __exit__(self, *_: object) -> None:
        self.diary.append(f"{self.name} ends")

    def take_turns_with(self, other: Any) -> None:
        """What is loaded here is small."""

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


# Recorded timings are read as they were: a changed statistic shows in these numbers.


BURSTS = Path(__file__).parents[3] / "fixtures" / "bursts"

READ: dict[tuple[str, str], dict[str, object]] = {
    ("alone", "equal"): {
        "claim": (0.99194, 0.96494, 1.01969),
        "sorting": (0.99194, 0.97835, 1.00571),
        "one pair": (0.99325, 0.55457, 1.77892),
        "one block a pair": (1.00483, 0.96469, 1.04665),
        "learnt": (0.99194, 0.97096, 1.01336),
        "new": (0.99194, 0.93778, 1.04922),
        "blocks": (0.01884, -0.01791, -0.00173, -0.01205, 0.00457, -0.01811),
        "unlike": (0.05866, -0.00306, -0.00818, -0.00239, 0.01488, -0.01461),
        "disturbed": 0.25885,
    },
    ("alone", "slower"): {
        "claim": (1.04517, 1.00395, 1.08808),
        "sorting": (1.04517, 1.02437, 1.0664),
        "one pair": (1.04398, 0.44185, 2.46663),
        "one block a pair": (1.0228, 0.95337, 1.09729),
        "learnt": (1.04517, 1.0194, 1.0716),
        "new": (1.04517, 0.97217, 1.12366),
        "blocks": (0.0374, 0.04868, -0.02462, 0.05117, 0.04718, 0.03889),
        "unlike": (0.04517, 0.04933, 0.05546, 0.06586, 0.06702, 0.05208),
        "disturbed": 0.21038,
    },
    ("busy", "equal"): {
        "claim": (1.00866, 0.95856, 1.06139),
        "sorting": (1.00866, 0.9833, 1.03467),
        "one pair": (1.05159, 0.01382, 80.00166),
        "one block a pair": (0.99745, 0.95999, 1.03638),
        "learnt": (1.00866, 0.97623, 1.04217),
        "new": (1.00866, 0.92431, 1.1007),
        "blocks": (0.00787, 0.19983, 0.29999, -0.01131, 0.00482, -0.01887),
        "unlike": (-0.00087, 0.24046, 0.33082, -0.00862, 0.0087, -0.07014),
        "disturbed": 0.14548,
    },
    ("busy", "slower"): {
        "claim": (1.05506, 1.01835, 1.09309),
        "sorting": (1.05506, 1.03655, 1.0739),
        "one pair": (1.05311, 0.09169, 12.09507),
        "one block a pair": (1.07331, 1.03736, 1.11051),
        "learnt": (1.05506, 1.02551, 1.08545),
        "new": (1.05506, 0.98769, 1.12702),
        "blocks": (0.08313, 0.00095, 0.05201, 0.02309, 0.24443, 0.04875),
        "unlike": (0.09019, -3e-05, 0.05336, 0.00479, 0.25551, 0.0323),
        "disturbed": 0.12037,
    },
}


@cache
def recorded(place: str) -> dict[str, tuple[Pair, ...]]:
    text = gzip.decompress((BURSTS / f"{place}.json.gz").read_bytes())
    return {k: codec.decode(tuple[Pair, ...], pairs) for k, pairs in json.loads(text).items()}


def pooled(place: str) -> stats.PooledVariance:
    return stats.PooledVariance.pool([recorded(place)["slower"]], recorded(place)["equal"])


def unlike(pair: Pair) -> Pair:
    """The same runs, had every entry been of another sample."""
    sides = [
        (replace(b.baseline, alike=False), replace(b.candidate, alike=False)) for b in pair.blocks
    ]
    return Pair(tuple(Block(*one) for one in sides))


@pytest.mark.parametrize("cell", READ)
@pytest.mark.parametrize("name", next(iter(READ.values())))
def test_what_is_read_off_recorded_pairs(cell: tuple[str, str], name: str) -> None:
    place, which = cell
    pairs = recorded(place)[which]
    found: object = {
        "claim": lambda: stats.latency_ratio(pairs),
        "sorting": lambda: stats.latency_ratio(pairs, stats.SEARCHING),
        "one pair": lambda: stats.latency_ratio(pairs[:1]),
        "one block a pair": lambda: stats.latency_ratio([Pair(p.blocks[:1]) for p in pairs]),
        "learnt": lambda: stats.latency_ratio(pairs, learnt=pooled(place)),
        "new": lambda: stats.predict_ratio(pairs),
        "blocks": lambda: stats.block_logs(pairs[0]),
        "unlike": lambda: stats.block_logs(unlike(pairs[0])),
        "disturbed": lambda: stats.compute_disturbed_share(pairs),
    }[name]()
    if isinstance(found, Interval):
        found = (found.value, found.low, found.high)
    assert found == pytest.approx(READ[cell][name], abs=2e-5)


@pytest.mark.parametrize("cell", READ)
def test_a_claim_by_its_formula(cell: tuple[str, str]) -> None:
    """Five pairs, their variance moderated by the prior and what blocks are unsure of."""
    pairs = recorded(cell[0])[cell[1]]
    logs = [stats.block_logs(pair) for pair in pairs]
    means = [float(trim_mean(one, 0.2)) for one in logs]
    rng = np.random.default_rng(5)
    errors = [
        float(np.std(trim_mean(rng.choice(one, (1500, len(one))), 0.2, axis=1)))
        * math.sqrt(len(one) / (len(one) - 1))
        for one in logs
    ]
    prior = stats.PAIR_SD**2 + float(np.mean(np.square(errors)))
    df = stats.PRIOR_DF + 4
    variance = (stats.PRIOR_DF * prior + 4 * np.var(means, ddof=1)) / df
    half = t.ppf(0.995, df) * math.sqrt(variance / 5)
    found = stats.latency_ratio(pairs)
    assert math.log(found.value) == pytest.approx(np.mean(means))
    assert math.log(found.high / found.value) == pytest.approx(half, rel=0.02)
    assert math.log(found.value / found.low) == pytest.approx(half, rel=0.02)


def test_what_a_run_learns() -> None:
    """Equal sides have a known mean, so that each of their pairs counts."""
    equal, slower = recorded("busy")["equal"], recorded("busy")["slower"]
    one, two = (
        np.array([float(trim_mean(stats.block_logs(pair), 0.2)) for pair in pairs])
        for pairs in (equal, slower)
    )
    found = pooled("busy")
    assert found.df == 9
    assert found.squares == pytest.approx((one**2).sum() + ((two - two.mean()) ** 2).sum())
    assert stats.PooledVariance.pool([slower[:1], ()]) == stats.NOTHING, (
        "of a lone pair nothing is known"
    )
    shared = stats.PooledVariance.pool([slower, equal], one_baseline=True)
    assert shared.df == int(8 * 4 / 5)
    alone = stats.PooledVariance.pool([slower, equal])
    assert shared.squares / shared.df == pytest.approx(alone.squares / alone.df)


def test_the_half_width_of_a_claim_in_a_run() -> None:
    learnt = stats.PooledVariance(0.004, 9)
    df = stats.PRIOR_DF + 9
    variance = (stats.PRIOR_DF * stats.PAIR_SD**2 + 0.004) / df
    for count in (1, 5):
        wanted = t.ppf(0.995, df + count - 1) * math.sqrt(variance / count)
        assert stats.half_width(learnt, count) == pytest.approx(wanted, rel=1e-4)
    assert stats.half_width(learnt) == stats.half_width(learnt, 5)


@pytest.mark.parametrize("df", [1, 1.5, 2, 5.5, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_student(df: float, confidence: float) -> None:
    wanted = t.ppf((1 + confidence) / 2, df)
    assert stats.student_quantile(confidence, df) == pytest.approx(wanted, rel=1e-4)


def test_a_claim_holds_where_seven_processes_share_two_cpus() -> None:
    """Digits by 32, float and int8, in pairs of three blocks: 0.59 by the fastest runs.

    The median float run, of 2.2 ms, had waited 8 ms for a CPU; the median int8 run had not.
    """
    pairs = recorded("saturated")["int8"]
    assert {len(pair.blocks) for pair in pairs} == {3} and stats.compute_disturbed_share(
        pairs
    ) > 0.6
    found = stats.latency_ratio(pairs)
    assert (found.low, found.high) == pytest.approx((0.584, 0.614), abs=1e-3)


# Real workers that share one CPU with processes that never stop: no ratio of slices.


MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,384] x, float[384,384] w) => (float[N,384] y) {
  a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w)
}
"""
SIZES = (1280, 64)
"""Rows of the slow and of the fast model: one takes longer than a time slice, one fits into it."""


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def worker(folder: Path, rows: int) -> Iterator[Worker]:
    """A process that multiplies so many rows, ready."""
    here = folder / str(rows)
    here.mkdir()
    onnx.save(onnx.parser.parse_model(MODEL), here / "toy.onnx")
    feeds = {"x": np.ones((rows, 384), np.float32), "w": np.eye(384, dtype=np.float32)}
    stream.write_stream(here / "feeds.stream", iter([feeds]))
    job = single_model_job(
        here / "toy.onnx", Cpu(threads=1), here / "feeds.stream", here, "neighbours"
    )
    with start_in_turn(lambda: Worker(job)) as ((process, _),):
        yield process


def cpu_ns(process: Worker, runs: int) -> float:
    """The CPU time of a run, in which no neighbour's time is."""
    before = process.ask("usage")["cpu_ns"]
    process.ask("burst", at=0, runs=runs)
    return float(process.ask("usage")["cpu_ns"] - before) / runs


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or not hasattr(os, "sched_setaffinity"),
    reason="the kernel does not say who waited",
)
def test_beside_processes_that_never_stop_a_ratio_is_true_or_not_claimed(
    tmp_path: Path, one_cpu: None
) -> None:
    slower, faster = (worker(tmp_path, rows) for rows in SIZES)
    with keep_cores_busy(2), slower as slow, faster as fast:
        pair: Pair = time_pair(slow, fast, Effort(seconds=2.0, decide=False, burst=0.1))
        truth = cpu_ns(fast, 200) / cpu_ns(slow, 20)
    waited = [share for block in pair.blocks for share in block.baseline.waited]
    wall = [ns for block in pair.blocks for ns in block.baseline.latency_ns]
    fit = [ns for block in pair.blocks for ns in block.candidate.latency_ns]
    if np.median(fit) / np.median(wall) >= 0.7 * truth:
        pytest.skip("the scheduler let both kinds of runs wait alike: there is no trap here")
    assert np.mean(np.array(waited) > stats.WAITED) > 0.5, "the longer runs waited"
    found = stats.latency_ratio([pair] * stats.PAIRS)
    assert found.high > 0.9 * truth, "no faster than it is"
    assert found.value == pytest.approx(truth, rel=0.4), "what a search sorts by is near it"
    others = [block.baseline.neighbours for block in pair.blocks]
    assert all(used is not None for used in others) and np.mean(others) > 0.3  # type: ignore[arg-type]


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or not hasattr(os, "sched_setaffinity"),
    reason="the kernel does not say who waited",
)
def test_a_burst_says_what_others_used(tmp_path: Path, one_cpu: None) -> None:
    """Beside two that never stop this process has a third of the CPU."""
    with keep_cores_busy(2), worker(tmp_path, SIZES[1]) as process:
        bursts = [request_burst(process, Span(0, 400)) for _ in range(5)]
    used = [burst.neighbours for burst in bursts if burst.neighbours is not None]
    assert len(used) == 5 and 0.3 < np.mean(used) <= (os.cpu_count() or 1) + 0.05
