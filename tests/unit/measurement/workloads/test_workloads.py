"""Workloads drive a worker's sessions. Times are scripted: a run takes what its backend says."""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ortune_toys.backends.crash import Crash
from ortune_toys.backends.scripted import Scripted
from tests.stateful import write_decoder
from tests.unit import studies
from tests.unit.studies import FACTS

from ortune.backends.cpu import Cpu
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.reading import read_workload
from ortune.core.workload import Workload
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.worker import tasks as driving
from ortune.measurement.worker.workbench import Workbench
from ortune.measurement.workloads import throughput as throughput_file
from ortune.measurement.workloads.arrivals import Arrivals
from ortune.measurement.workloads.first_shapes import FirstShapes
from ortune.measurement.workloads.generate import Generate
from ortune.measurement.workloads.latency import Latency
from ortune.measurement.workloads.loadgen import Loadgen
from ortune.measurement.workloads.shapes import Shapes
from ortune.measurement.workloads.throughput import Throughput
from ortune.reporting.sections import verdict
from ortune.search.experiment.experiment import describe_difference, job_key
from ortune.search.recipe.space import SearchTarget

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""
RUN_NS = 2_000_000
"""What a run takes on the scripted backend here."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "toy.onnx")
    return tmp_path


@contextmanager
def bench(
    folder: Path,
    workload: Workload,
    rows: Sequence[int] = (1,) * 5,
    backend: Backend | None = None,
) -> Iterator[Workbench]:
    """Open a workbench in this process; sample k has `rows[k]` rows."""
    model = folder / "toy.onnx"
    slow = RUN_NS / (1000 * model.stat().st_size)
    stream.write_stream(folder / "f", ({"x": np.full((n, 4), n, np.float32)} for n in rows))
    job = WorkerJob(
        {MAIN: model}, backend or Scripted(slow=slow), {MAIN: folder / "f"}, folder, workload
    )
    with ExitStack() as stack:
        opened = Workbench(job, stack)
        opened.open_sessions()
        yield opened


def drive(opened: Workbench, **span: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Burst once: the answer, and the workload's own results of it."""
    driving.first(opened)
    answer = driving.burst(opened, **{"at": 0, "runs": 4, **span})
    found = driving.details(opened)["details"]
    return answer, opened.job.workload.results(answer["latency_ns"], found)


def test_an_answer_is_a_prompt_and_its_tokens(tmp_path: Path) -> None:
    write_decoder(tmp_path / "toy.onnx")
    sample = {
        "input_ids": np.array([[3, 7, 1]]),
        "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.arange(3)[None],
        "past_key_values.0.key": np.zeros((1, 2, 0, 4), np.float32),
    }
    stream.write_stream(tmp_path / "f", [sample])
    job = WorkerJob(
        {MAIN: tmp_path / "toy.onnx"},
        Cpu(threads=1),
        {MAIN: tmp_path / "f"},
        tmp_path,
        Generate(prompt=8, tokens=4),
    )
    with ExitStack() as stack:
        opened = Workbench(job, stack)
        opened.open_sessions()
        answer, results = drive(opened, runs=3, drop=1)
    assert len(answer["latency_ns"]) == 3
    parts_ns = results["first_token_ns"] + 3 * results["token_ns"]
    assert parts_ns <= 2 * max(answer["latency_ns"])
    assert results["cache_bytes"] == (8 + 3) * 2 * 4 * 4, "the last token is not read again"
    assert results["tokens_per_s"] > 0
    with pytest.raises(BadSettings, match="2 or more"):
        Generate(tokens=1)


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_throughput_is_the_time_of_a_run_over_the_sessions(folder: Path, sessions: int) -> None:
    with bench(folder, Throughput(sessions=sessions)) as opened:
        answer, results = drive(opened, runs=6, each=2, drop=1)
        assert len(opened.lanes) == sessions
        assert opened.runs >= 12 + sessions
    assert answer["latency_ns"] == pytest.approx([RUN_NS / sessions] * 6, rel=1e-3)
    assert len(answer["waited"]) == 6
    assert results["sessions"] == sessions
    assert results["throughput_per_s"] == pytest.approx(1e9 * sessions / RUN_NS, rel=1e-3)
    assert results["run_p50_ns"] == pytest.approx(RUN_NS, rel=1e-3)


def test_throughput_counts_samples_of_a_batch(folder: Path) -> None:
    with bench(folder, Throughput(batch=3, sessions=1)) as opened:
        _, results = drive(opened)
        assert opened.lanes[0].calls(0)[0][1]["x"].shape == (3, 4)
    assert results["throughput_per_s"] == pytest.approx(3e9 / RUN_NS, rel=1e-3)


def test_as_many_sessions_as_fit_follow_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_file, "effective_cpus", lambda: 8)
    fits = {threads: Throughput().lanes(threads) for threads in (0, 1, 2, 3, 8, 16)}
    assert fits == {0: 1, 1: 8, 2: 4, 3: 2, 8: 1, 16: 1}
    assert Throughput(sessions=5).lanes(8) == 5
    assert Throughput().splits(8) == (1, 2, 4, 0)
    assert Throughput().splits(6) == (1, 2, 4, 0)
    assert Throughput().splits(1) == (0,)


def test_a_session_that_fails_ends_the_burst_of_all(folder: Path) -> None:
    with bench(folder, Throughput(sessions=3)) as opened:
        lanes = opened.lanes

        def broken(position: int) -> Any:
            raise OrtuneError("broken", fix="none")

        lanes[1].calls = broken  # type: ignore[method-assign]
        with pytest.raises(OrtuneError, match="broken"):
            driving.burst(opened, at=0, runs=4)


def test_arrivals_below_capacity_wait_for_nothing(folder: Path) -> None:
    workload = Arrivals(rate=100, pattern="constant", seconds=0.2)
    with bench(folder, workload) as opened:
        answer, results = drive(opened)
    assert answer["latency_ns"] == pytest.approx([RUN_NS] * 20, rel=1e-3)
    assert results["keeps_up"]
    assert results["notes"] == []
    assert results["load"] == pytest.approx(0.2, rel=1e-3)
    assert results["offered_rate"] == pytest.approx(100)
    assert results["achieved_rate"] == pytest.approx(100, rel=0.02)


def test_arrivals_above_capacity_queue_up_and_are_told(folder: Path) -> None:
    """A closed loop would say 2 ms a run here: the queue is what it leaves out."""
    workload = Arrivals(rate=1000, pattern="constant", seconds=0.05)
    with bench(folder, workload) as opened:
        answer, results = drive(opened)
    gaps = np.diff(answer["latency_ns"])
    assert gaps == pytest.approx([1_000_000] * 49, rel=1e-2)
    assert answer["latency_ns"][-1] == pytest.approx(51_000_000, rel=1e-2)
    assert not results["keeps_up"]
    assert results["load"] == pytest.approx(2, rel=1e-3)
    assert results["achieved_rate"] == pytest.approx(500, rel=0.01)
    assert "cannot keep up with 1,000 calls a second" in results["notes"][0]


def test_a_second_session_lets_arrivals_keep_up(folder: Path) -> None:
    with bench(folder, Arrivals(rate=800, sessions=2, pattern="constant", seconds=0.05)) as opened:
        _, results = drive(opened)
    assert results["load"] == pytest.approx(0.8, rel=1e-3)
    assert results["keeps_up"]


def test_calls_that_wait_too_long_are_given_up_and_count_as_long_as_they_waited(
    folder: Path,
) -> None:
    with bench(folder, Arrivals(rate=20_000, pattern="constant", seconds=0.01)) as opened:
        answer, results = drive(opened)
    assert len(answer["latency_ns"]) == 200
    assert results["given_up"] > 150
    assert answer["latency_ns"][-1] == pytest.approx(30_000_000, rel=0.01)
    assert not results["keeps_up"]


def test_both_sides_of_a_pair_get_one_schedule_and_every_burst_another() -> None:
    one, two = Arrivals(rate=50, seconds=2), Arrivals(rate=50, seconds=2)
    assert one.schedule_arrivals(7) == two.schedule_arrivals(7)
    assert one.schedule_arrivals(7) != one.schedule_arrivals(8)
    assert one.schedule_arrivals(7) != Arrivals(rate=50, seconds=2, seed=1).schedule_arrivals(7)
    gaps = np.diff(Arrivals(rate=50, seconds=200).schedule_arrivals(0)) / 1e9
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)


def test_shapes_are_told_apart_in_the_datas_own_mix(folder: Path) -> None:
    with bench(folder, Shapes(), rows=(1, 8, 1, 1)) as opened:
        answer, results = drive(opened, runs=8)
    assert answer["latency_ns"] == pytest.approx([RUN_NS] * 8, rel=1e-3)
    table = results["per_shape"]
    assert list(table) == ["1x4", "8x4"]
    assert [row["runs"] for row in table.values()] == [6, 2]
    assert table["8x4"]["share_of_time"] == pytest.approx(0.25, rel=1e-3)
    assert table["8x4"]["latency_p99_ns"] is None


def test_a_given_mix_is_followed_and_spread(folder: Path) -> None:
    with bench(folder, Shapes(mix=("8x4=3", "1x4=1")), rows=(1, 2, 8, 1)) as opened:
        shapes = list(opened.shapes)
    assert shapes.count("8x4") == 192
    assert shapes.count("1x4") == 64
    assert shapes[:8].count("8x4") == 6


@pytest.mark.parametrize(
    ("order", "expected"), [("data", ["9x4", "10x4", "1x4"]), ("sorted", ["1x4", "9x4", "10x4"])]
)
def test_order_of_the_shapes(folder: Path, order: Any, expected: list[str]) -> None:
    with bench(folder, Shapes(order=order), rows=(9, 10, 1)) as opened:
        assert list(opened.shapes) == expected


def test_shuffled_shapes_are_the_same_on_both_sides(folder: Path) -> None:
    given = ["a", "b", "c", "d", "e", "f"]
    assert Shapes(order="shuffled").cycle(given) == Shapes(order="shuffled").cycle(given)
    assert sorted(Shapes(order="shuffled").cycle(given)) == list(range(6))
    assert Shapes(order="shuffled", seed=1).cycle(given) != Shapes(order="shuffled").cycle(given)


def test_a_mix_of_a_shape_that_no_sample_has(folder: Path) -> None:
    with (
        bench(folder, Shapes(mix=("3x4=1",)), rows=(1, 8)) as opened,
        pytest.raises(BadData, match=r"no sample has the shape 3x4") as caught,
    ):
        driving.burst(opened, at=0, runs=2)
    assert caught.value.fix == "use 1x4, 8x4"


def test_every_shape_is_met_once_by_a_fresh_session(folder: Path) -> None:
    backend = _Compiling()
    rows = (1, 8, 1, 4, 8)
    with bench(folder, FirstShapes(), rows=rows, backend=backend) as opened:
        driving.first(opened)
        entries = [
            driving.burst(opened, at=at, runs=9)["latency_ns"] for at in range(3) for _ in range(2)
        ]
        assert opened.shapes == ["1x4", "8x4", "4x4"]
        found = driving.details(opened)["details"]
        results = opened.job.workload.results([], found)
    assert entries == [[10_000] * 3] * 6
    assert {shape: row["times"] for shape, row in results["per_shape"].items()} == {
        "1x4": 10,
        "8x4": 10,
        "4x4": 10,
    }
    assert "costs 10.00 times a later one" in results["notes"][0]


def test_one_shape_alone_is_told(folder: Path) -> None:
    with bench(folder, FirstShapes(), rows=(2, 2)) as opened:
        answer, results = drive(opened)
    assert len(answer["latency_ns"]) == 1
    assert results["per_shape"] == {}
    assert "only one shape" in results["notes"][0]


def test_latency_tells_no_more_than_its_entries(folder: Path) -> None:
    """The negative control: what the other workloads add, this one does not."""
    with bench(folder, Latency()) as opened:
        answer, results = drive(opened, runs=5, each=3, drop=2)
        assert opened.runs == 17
        driving.burst(opened, at=0, runs=5, drop=100)
        assert opened.runs - 17 in (5 + 5, 5 + 6), "runs of 2 ms are settled after 10 ms"
    assert answer["latency_ns"] == pytest.approx([RUN_NS] * 5, rel=1e-3)
    assert results == {}


@pytest.mark.parametrize(
    ("workload", "rows", "alike"),
    [
        (Latency(), (1, 1, 1), True),
        (Throughput(sessions=2), (2, 2), True),
        (Latency(), (1, 8, 1), False),
        (Shapes(), (1, 8), False),
        (Arrivals(rate=100, seconds=0.02), (1, 1), False),
        (FirstShapes(), (1, 1), False),
    ],
)
def test_entries_are_alike_where_no_shape_and_no_schedule_tells_them_apart(
    folder: Path, workload: Workload, rows: Sequence[int], alike: bool
) -> None:
    with bench(folder, workload, rows=rows) as opened:
        assert drive(opened)[0]["alike"] is alike


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("latency(batch=-1)", "batch=-1"),
        ("throughput(sessions=-1)", "sessions=-1"),
        ("arrivals(rate=0)", "rate=0"),
        ("arrivals(sessions=0)", "sessions=0"),
        ("arrivals(pattern=burst)", "burst"),
        ("arrivals(seconds=-1)", "seconds=-1"),
        ('shapes(mix=["1x4"])', "1x4"),
        ('shapes(mix=["1x4=0"])', "1x4=0"),
        ('shapes(mix=["1x4=²"])', "1x4=²"),
        ("shapes(order=random)", "random"),
        ("loadgen(scenario=interactive)", "interactive"),
        ("loadgen(scenario=server)", "qps=0"),
        ("loadgen(sessions=0)", "sessions=0"),
        ("through", "no workload 'through'"),
        ("throughput(rate=3)", "no field 'rate'"),
    ],
)
def test_bad_fields_are_two_lines(text: str, said: str) -> None:
    with pytest.raises(OrtuneError) as caught:
        parse_plugin(Workload, text)
    assert said in caught.value.what
    assert len(str(caught.value).splitlines()) == 2


def test_a_search_tries_the_best_split_and_all_cpus_with_every_recipe() -> None:
    target = SearchTarget(Cpu(), Capabilities(), splits=(1, 2, 4, 0))
    assert target.list_variants(FACTS, Throughput()) == [Cpu(threads=1), Cpu()]
    pinned = replace(target, backend=Cpu(threads=3), pinned=frozenset({"threads"}))
    assert pinned.list_variants(FACTS, Throughput()) == [Cpu(threads=3)]
    assert SearchTarget(Cpu(), Capabilities()).list_variants(FACTS, Latency()) == [Cpu()]


def test_the_batch_may_be_said_beside_the_workload() -> None:
    assert read_workload("throughput(sessions=2)", 4) == Throughput(batch=4, sessions=2)
    assert read_workload(Latency(batch=4), 4) == Latency(batch=4)
    with pytest.raises(BadSettings, match="contradicts"):
        read_workload("latency(batch=2)", 4)


def test_another_workload_is_another_job(tmp_path: Path) -> None:
    one = studies.study(tmp_path).job
    two = replace(one, workload=Throughput())
    assert job_key(one) != job_key(two)
    assert describe_difference(one, two) == "its workload is latency, not throughput"


def test_a_report_says_what_a_speedup_is_of(tmp_path: Path) -> None:
    made = studies.study(tmp_path)
    assert wording.describe_latencies(made, made.best).startswith("Latency ")
    other = studies.changed(made, job=replace(made.job, workload=Throughput(sessions=2)))
    assert wording.describe_latencies(other, other.best).startswith("Time per inference ")
    assert " under throughput(sessions=2) (99 %" in verdict.describe_answer(other)


@pytest.mark.parametrize("kind", [Arrivals(rate=1e6), Loadgen(scenario="offline")])
def test_bursts_fit_a_short_search(kind: Arrivals | Loadgen) -> None:
    """Five pairs of eight bursts of a second took minutes of a search of two seconds."""
    assert kind.within(180) == kind
    assert kind.within(30).seconds == 0.5
    assert kind.within(0.1).seconds == 0.05
    given = replace(kind, seconds=2)
    assert given.within(2) == given


@pytest.mark.skipif(importlib.util.find_spec("mlperf_loadgen") is None, reason="no LoadGen")
@pytest.mark.parametrize(
    ("scenario", "figure"),
    [
        ("single-stream", "result_mean_latency_ns"),
        ("multi-stream", "result_mean_query_latency_ns"),
        ("server", "result_completed_samples_per_sec"),
        ("offline", "result_samples_per_second"),
    ],
)
def test_loadgen_drives_and_its_own_log_is_the_result(
    folder: Path, scenario: Any, figure: str
) -> None:
    qps = 0 if scenario == "offline" else 200
    workload = Loadgen(scenario=scenario, qps=qps, seconds=0.2, sessions=2)
    with bench(folder, workload, backend=Cpu(threads=1)) as opened:
        asked: list[int] = []
        for lane in opened.lanes:
            lane.calls = _counting(lane.calls, asked)  # type: ignore[method-assign]
        answer, results = drive(opened, runs=3)
        assert opened.runs == len(asked) - 2, "all but the first inference of either session"
        logs = sorted(path.name for path in (folder / "loadgen" / "0000").iterdir())
    assert "mlperf_log_detail.txt" in logs
    value = float(results["loadgen"][figure])
    assert value > 0
    wanted = {"offline": 1e9 / value, "server": results["loadgen"]["result_mean_latency_ns"]}
    assert answer["latency_ns"] == [round(wanted.get(scenario, value))] * 3
    assert results["bursts"] == 1
    assert ("throughput_per_s" in results) is (scenario == "offline")
    assert results.get("throughput_per_s", value) == pytest.approx(value, rel=1e-3)


def _counting(calls: Any, asked: list[int]) -> Any:
    def counted(position: int) -> Any:
        asked.append(position)
        return calls(position)

    return counted


@pytest.mark.skipif(importlib.util.find_spec("mlperf_loadgen") is None, reason="no LoadGen")
def test_a_failing_session_ends_a_loadgen_test(folder: Path) -> None:
    with bench(folder, Loadgen(seconds=0.1), backend=Cpu(threads=1)) as opened:
        driving.first(opened)
        calls = opened.lanes[0].calls
        left = iter(range(5))

        def breaks(position: int) -> Any:
            if next(left, None) is None:
                raise OrtuneError("broken", fix="none")
            return calls(position)

        opened.lanes[0].calls = breaks  # type: ignore[method-assign]
        with pytest.raises(OrtuneError, match="broken"):
            driving.burst(opened, at=0, runs=1)


def test_loadgen_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install" in str(Loadgen().missing())


class _Compiling(Crash):
    """A shape that a session has not met takes ten times as long."""

    def open(self, path: Path, *, verbose: bool = False) -> Any:
        @contextmanager
        def opened() -> Iterator[Any]:
            yield _CompilingSession()

        return opened()


class _CompilingSession:
    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()
        self._now = 0

    def run(self, feeds: Any) -> dict[str, Any]:
        shape = feeds["x"].shape
        self._now += 1000 if shape in self._seen else 10_000
        self._seen.add(shape)
        return {}

    def clock(self) -> int:
        return self._now

    def waited(self) -> int:
        return 0
