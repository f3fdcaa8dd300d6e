"""What is timed, in which order, and what a row says; clocks follow a script."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from examples.meter import pipeline
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortune_toys.backends.crash import Crash
from ortune_toys.backends.scripted import Scripted
from rich.console import Console
from tests.unit import environments, packaged, studies

import ortune as ot
from ortune.analysis.benchmark import bench
from ortune.analysis.benchmark import bench as benching
from ortune.analysis.benchmark.bench import Fitness, State, race_contestants
from ortune.analysis.benchmark.interleave import BenchResult, Contestant, TimedRow, judge_rows
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.benchmark.row_figures import describe_row
from ortune.backends.cpu import Cpu
from ortune.backends.tensorrt import Tensorrt
from ortune.bundle.engine import archive
from ortune.bundle.engine.load import load_engine
from ortune.cli import bench as bench_verb
from ortune.cli.main import main
from ortune.cli.terminal import output
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Event, Note, Progress
from ortune.core.hardware.gpu import Gpu
from ortune.core.plugins import codec
from ortune.core.result import as_json
from ortune.core.trial import Burst, Interval
from ortune.measurement.environments.installed import add_environment
from ortune.measurement.machine.counters import Energy
from ortune.measurement.machine.noise import Advice, Record
from ortune.measurement.workloads.arrivals import Arrivals
from ortune.measurement.workloads.latency import Latency
from ortune.measurement.workloads.throughput import Throughput

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""
NO_ENERGY = Energy((), ("RAPL: hidden",))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def spelled(on: str, threads: tuple[int, ...] = (), levels: tuple[str, ...] = ()) -> list[str]:
    return [
        str(one) for one in benching.expand_backends([on], threads, levels, lambda event: None)
    ]


def test_every_backend_runs_at_every_level_and_thread_count_once() -> None:
    assert spelled("cpu", (1, 2), ("basic", "all")) == [
        "cpu(threads=1, level=basic)",
        "cpu(threads=2, level=basic)",
        "cpu(threads=1)",
        "cpu(threads=2)",
    ]
    assert spelled("cpu,cpu", (2, 2)) == ["cpu(threads=2)"]
    assert spelled("cpu(level=basic),reference") == ["cpu(level=basic)", "reference"]


def test_a_level_of_two_names_is_timed_once_and_written_by_one() -> None:
    assert spelled("cpu", levels=("disable", "disabled")) == ["cpu(level=disabled)"]
    with pytest.raises(BadSettings) as caught:
        spelled("cpu", levels=("fastest",))
    assert caught.value.fix == "use one of: disabled, basic, extended, all"


def test_a_backend_without_levels_is_timed_once_and_that_is_said() -> None:
    told: list[Any] = []
    found = benching.expand_backends(["cpu,reference"], (), ("basic", "all"), told.append)
    assert [str(one) for one in found] == ["cpu(level=basic)", "cpu", "reference"]
    assert told == [Note("reference has no levels: it is timed once")]


@pytest.mark.parametrize(
    ("on", "threads", "levels", "said"),
    [
        ("cpu(threads=1)", (2,), (), "threads is given in 'cpu"),
        ("cpu(level=basic)", (), ("all",), "level is given in 'cpu"),
        ("cpu", (0,), (), "--threads 0"),
        ("cpu", (), ("fastest",), "no backend of --on has a level 'fastest'"),
        ("reference", (), ("all",), "no backend of --on has a level 'all'"),
        ("gpu", (), (), "no backend 'gpu'"),
    ],
)
def test_wrong_expansions_are_refused(
    on: str, threads: tuple[int, ...], levels: tuple[str, ...], said: str
) -> None:
    with pytest.raises(OrtuneError, match="fix: ") as caught:
        spelled(on, threads, levels)
    assert said in caught.value.what


def test_batches_make_groups_and_contradictions_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: list[Any] = []
    monkeypatch.setattr(benching, "time_groups", lambda made, asked: groups.extend(made))
    benching.run(Bench(["a", "b"], workload="throughput(sessions=2)", batch=(8, 1, 8)))
    workloads = [Throughput(8, sessions=2), Throughput(1, sessions=2)]
    assert [[(one.model.name, one.workload) for one in group] for group in groups] == [
        [("a", workload), ("b", workload)] for workload in workloads
    ]
    with pytest.raises(OrtuneError, match="--batch 4 contradicts"):
        benching.run(Bench(["a"], workload="throughput(batch=2)", batch=4))


def timed(
    model: Path, bursts: list[list[Burst]], workload: Any = None, details: Any = ()
) -> dict[str, Any]:
    one = TimedRow(Contestant(model, Cpu(), workload or Latency()), model)
    one.turns, one.runs, one.cpu_ns, one.details = bursts, 10, 50, list(details)
    one.footprints = [
        {"rss": 5, "uss": None, "peak": 9, "samples": 2},
        {"rss": 7, "uss": 3, "peak": 8, "samples": 2},
    ]
    return describe_row(one, "digest", NO_ENERGY)


def test_a_row_keeps_raw_samples_and_shows_no_percentile_that_few_samples_support(
    model: Path,
) -> None:
    few = timed(model, [[Burst((100, 200), (0.0, 0.0))], [Burst((300, 400), (0.0, 0.5))]])
    assert few["latency_ns"] == [100, 200, 300, 400] and few["p50_ns"] == 250
    assert few["p90_ns"] is few["p99_ns"] is few["p999_ns"] is None
    assert few["turns"] == [[[100, 200]], [[300, 400]]] and few["waited"][1] == [[0.0, 0.5]]
    assert few["sd_ns"] == pytest.approx(129.1, abs=0.1) and few["per_second"] == 4e6
    assert (few["peak_rss"], few["rss"], few["uss"], few["samples_bytes"]) == (9, 7, 3, 2)
    assert few["cpu_ns"] == 5
    assert few["joules"] == {"per_run": None, "why": "RAPL: hidden"}

    many = timed(model, [[Burst(tuple(range(10_010)), (0.0,) * 10_010)]])
    assert many["p999_ns"] == pytest.approx(9999, abs=2)
    none = timed(model, [[Burst(tuple(range(9_990)), (0.0,) * 9_990)]])
    assert none["p999_ns"] is None and none["p99_ns"] is not None


def test_entries_that_share_one_measurement_count_once(model: Path) -> None:
    same = [[Burst((5,) * 100 + (7,) * 100, (0.0,) * 200)]]
    whole = timed(model, same, Throughput(sessions=1))
    assert whole["p90_ns"] is None and whole["mean_ns"] == 6 and whole["entries"] == 2
    assert whole["sd_ns"] == pytest.approx(2**0.5), "of two bursts, not of two hundred entries"
    assert timed(model, same)["p90_ns"] == 7
    batched = timed(model, [[Burst((100, 300), (0.0, 0.0))]], Latency(batch=4))
    assert batched["per_second"] == pytest.approx(4e9 / 200) and batched["per_sample_ns"] == 50


def test_samples_a_second_count_a_batch_once(model: Path) -> None:
    bursts = [[Burst((1_000_000,) * 4, (0.0,) * 4)]]
    told = [{"sessions": 2, "runs_ns": [2_000_000]}]
    row = timed(model, bursts, Throughput(batch=8, sessions=2), told)
    assert row["reported"]["throughput_per_s"] == row["per_second"] == pytest.approx(8000)
    served = {"offered": [9, 10**9], "served": [9, 10**9], "busy_ns": 1, "queued_ns": [0]}
    row = timed(model, bursts, Arrivals(batch=8), [served | {"sessions": 1}])
    assert row["reported"]["achieved_rate"] == pytest.approx(9)
    assert row["per_second"] == pytest.approx(72)


def test_a_race_finds_the_faster_and_ratios_hold_within_a_batch(model: Path) -> None:
    found = ot.bench(
        model, on="scripted(slow=2.0),scripted", batches=(1, 4), self_check=True, sets=2, time=0.1
    )
    values = [one and one.value for one in found.ratios]
    assert values == pytest.approx([1, 0.5, 1, 1, 0.5])
    assert Counter(row["batch"] for row in found.rows) == {1: 3, 4: 2}
    assert [one.row for one in found.winners] == [1, 4] and found.winner is None
    assert found.self_check.row == 2 and found.self_check.equal
    assert len({row["digest"] for row in found.rows}) == 1
    for row in found.rows:
        assert row["error"] is None and len(row["turns"]) == len(row["load_ns"]) == 2
        assert row["cpu_ns"] > 0 and 0 < row["rss"] <= row["peak_rss"]
        assert row["samples_bytes"] % 16 == 0 and row["samples_bytes"] > 0, "rows of four floats"


def test_every_plan_of_a_bundle_is_a_row_under_its_name(tmp_path: Path) -> None:
    bundle = packaged.bundle(tmp_path)
    with archive.open_bundle(bundle) as (_, manifest):
        backends = [plan.backend for plan in manifest.plans]
    found = ot.bench(bundle, on="scripted", sets=1, time=0.1)
    assert [row["backend"] for row in found.rows] == backends != ["scripted"]
    for row in found.rows:
        assert (row["model"], row["error"]) == (str(bundle), None)


def test_a_row_that_fails_stays_and_the_others_are_judged(model: Path) -> None:
    contestants = [(model, Scripted()), (model, Crash()), (model, Scripted(slow=0.5))]
    found = race_contestants(contestants, sets=1, time=0.1)
    assert "SIGSEGV" in found.rows[1]["error"] and found.ratios[1] is None
    assert found.winner == 2 and found.winners[0].row == 2
    with pytest.raises(OrtuneError, match="sets: 0"):
        race_contestants(contestants, sets=0)
    with pytest.raises(OrtuneError, match="nothing to time"):
        race_contestants([])
    with pytest.raises(OrtuneError, match="does not run on crash"):
        race_contestants(contestants[1:], time=0.1)


def test_a_batch_that_a_model_does_not_take_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = tmp_path / "fixed.onnx"
    onnx.save(onnx.parser.parse_model(MODEL.replace("N,4", "1,4")), fixed)
    assert main(["bench", str(fixed), "--batch", "1,8", "--on", "crash"]) == 2
    assert "the batch of input 'x' is fixed: Got 8, expected 1" in capsys.readouterr().err


def judged(model: Path, again_ns: int, stolen: float = 0.0, fast_ns: int = 50_000) -> BenchResult:
    """A run of three sets: the first row, one twice as fast, and the first once more."""
    group = []
    for ns, again in ((100_000, False), (fast_ns, False), (again_ns, True)):
        one = TimedRow(Contestant(model, Cpu(), Latency(), again), model)
        one.turns = [[Burst((ns,) * 4, (0.0,) * 4)] * 6] * 3
        group.append(one)
    made = [describe_row(one, "digest", NO_ENERGY) for one in group]
    record = Record(10, 2, 1, 0.0, stolen, None, 0, 0.0, None, None, (), None, ())
    return judge_rows([group], made, record)


def test_a_claim_and_too_noisy_exclude_each_other(model: Path) -> None:
    good = judged(model, 100_100)
    assert good.winner == 1 and good.self_check.equal
    assert good.counts.pop("without an interval, as its runs waited for a CPU") == 0
    assert good.counts == {"faster": 1, "no faster (within noise)": 0, "slower": 0, "failed": 0}
    assert [row["typical_ns"] for row in good.rows[:2]] == pytest.approx([100_000, 50_000])
    unequal = judged(model, 120_000)
    assert not unequal.self_check.equal
    assert unequal.winner == 1 and not unequal.judgement.too_noisy
    wide, narrow = unequal.ratios[1], good.ratios[1]
    assert wide.high / wide.low > 1.2 > 1.1 > narrow.high / narrow.low, "it is in the intervals"
    assert judged(model, 100_100, stolen=0.5).winner == 1
    stolen = judged(model, 100_100, stolen=0.5, fast_ns=100_000)
    assert stolen.winner is None and stolen.judgement.too_noisy
    assert stolen.counts["no faster (within noise)"] == 1


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.integers(40_000, 400_000), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 2**16),
)
def test_no_record_is_both_claimed_and_too_noisy(
    model: Path, speeds: list[int], stolen: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    group = []
    for ns, again in zip(speeds, (False, False, True), strict=True):
        one = TimedRow(Contestant(model, Cpu(), Latency(), again), model)
        takes = (ns * np.exp(rng.normal(0, 0.2 * rng.random(), 3))).astype(int).tolist()
        one.turns = [[Burst((ns,) * 4, (0.0,) * 4)] * 4 for ns in takes]
        group.append(one)
    made = [describe_row(one, "digest", NO_ENERGY) for one in group]
    record = Record(10, 2, 1, 0.0, stolen, None, 0, 0.0, None, None, (), None, ())
    found = judge_rows([group], made, record)
    claimed = found.ratios[1].clear
    assert not (claimed and found.judgement.too_noisy)
    assert (found.winner is not None) is claimed
    words = {word for word, number in found.counts.items() if number}
    assert words == {
        "no faster (within noise)"
        if not claimed
        else "faster"
        if found.ratios[1].high < 1
        else "slower"
    }


def test_a_failed_self_check_is_told_and_exits_with_1(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = judged(model, 120_000)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "ortune.analysis.benchmark.bench.run", lambda given: asked.update(vars(given)) or answer
    )
    words = ["--on", "cpu", "--on", "openvino", "--threads", "1,2", "--batch", "1, 8"]
    more = ["--levels", "basic,all", "--workload", "throughput", "--self-check", "-v"]
    assert main(["bench", str(model), *words, *more]) == 1
    assert tuple(asked["on"]) == ("cpu", "openvino") and asked["threads"] == (1, 2)
    assert asked["batch"] == (1, 8) and asked["levels"] == ("basic", "all")
    assert asked["workload"] == "throughput" and asked["self_check"]
    said = capsys.readouterr().out
    assert "self-check failed: the first row is 1.200" in said
    assert "the intervals include this error" in said and "fastest: " in said
    assert "energy is not measured: RAPL: hidden" in said


def test_a_narrow_terminal_gets_fewer_columns_and_no_folded_names(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = judged(model, 100_100)
    told = {}
    for width in (160, 60):
        monkeypatch.setattr(output, "make_console", lambda width=width: Console(width=width))
        bench_verb.print_rows(answer, wide=False)
        told[width] = capsys.readouterr().out
    assert "peak MB" in told[160] and "left out" not in told[160]
    assert "left out, the terminal is narrow: p90 ms, CPU ms" in told[60]
    assert "\tms\t" in told[60]
    assert "0.500 [0.4" in told[60]
    assert "cannot be distinguished" in told[60]


@pytest.mark.parametrize(
    "words",
    [
        ["--threads", "two"],
        ["--workload", "sprint"],
        ["--workload", "throughput(sessions=-1)"],
        ["--sets", "0"],
        ["--time", "0"],
    ],
)
def test_wrong_words_are_two_lines(
    model: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(model), *words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 2 and "  fix: " in said.err


def test_a_gpu_has_its_own_latency_and_readings(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The readings are made up: no GPU is here."""
    gpu = Gpu(0, "Scripted GPU", "GPU-0", "9.0", 1 << 34, 1 << 30, 1980, 1980, 2619, 350.5, 700.0)
    rowed = []
    for backend, compute, gpus in (
        (Cpu(), [], []),
        (Tensorrt(), [400_000, 600_000, 500_000], [codec.encode(gpu)]),
    ):
        one = TimedRow(Contestant(model, backend, Latency()), model)
        one.turns = [[Burst((1_000_000,) * 30, (0.0,) * 30)] * 4] * 3
        one.compute_ns, one.gpus = compute, gpus
        rowed.append(one)
    made = [describe_row(one, "d", NO_ENERGY) for one in rowed]
    assert "device_ns" not in made[0] and made[0]["unverified"] == ""
    assert made[1]["device_ns"] == 500_000 and made[1]["gpus"][0]["watts"] == 350.5
    answer = judge_rows(
        [rowed], made, Record(10, 2, 1, 0.0, 0.0, None, 0, 0.0, None, None, (), None, ())
    )
    monkeypatch.setattr(output, "make_console", lambda: Console(width=200))
    bench_verb.print_rows(answer, wide=True)
    out = capsys.readouterr().out
    assert "on the device ms" in out and "tensorrt (unverified)" in out
    assert "Scripted GPU" in out and "350.5" in out and "1980" in out


# Providers that build engines: the process that built and those that did not, told apart.


MODEL_ENGINES = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { y = Relu(x) }
"""


def test_the_first_process_is_cold_and_the_others_are_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = tmp_path / "toy.onnx"
    onnx.save(onnx.parser.parse_model(MODEL_ENGINES), path)
    seen: list[Event] = []
    found = ot.bench(path, on="engined,cpu(threads=1)", sets=2, time=0.2, sink=seen.append)
    first, second = found.rows
    assert first["caches"] == ["cold", "warm"] and "caches" not in second
    assert first["load_ns"][0] > max(300e6, first["load_ns"][1])
    assert not (tmp_path / "home" / "ortune" / "engines").exists()
    told = {one.work for one in seen if isinstance(one, Progress)}
    assert told == {"timing", "building an engine for ToyExecutionProvider"}
    monkeypatch.setenv("COLUMNS", "300")
    bench_verb.print_rows(found, wide=True)
    shown = capsys.readouterr().out
    for title in ("session, cold", "session, warm", "first inference, cold", "\tsession\t"):
        assert title in shown


# Two environments, in which the runtimes may be of other releases, stand side by side.


def test_they_are_rows_of_one_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environments.linked(monkeypatch)
    add_environment("onnxruntime==1.24.4")
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    with pytest.raises(BadSettings, match="no environment 'gone'"):
        ot.bench(model, environment="gone")
    found = ot.bench(model, environment="here,ort-1.24.4", time=0.2, sets=1, self_check=True)
    assert [row["environment"] for row in found.rows] == ["here", "ort-1.24.4", "here"]
    assert set(found.environments) == {"here", "ort-1.24.4"}
    assert found.versions == found.environments["here"]
    capsys.readouterr()
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(as_json(found))
    words = ["--environment", "ort-1.24.4", "--time", "0.2", "--sets", "1", "--json", str(two)]
    assert main(["bench", str(model), *words]) == 0
    assert "environment ort-1.24.4" in capsys.readouterr().out
    assert json.loads(two.read_text())["rows"][0]["environment"] == "ort-1.24.4"
    (row,) = ot.compare([one, two]).rows
    assert row.name == "toy.onnx on cpu -> cpu, in ort-1.24.4"
    (row,) = ot.compare([one, two], by="model,environment").rows
    assert row.name == "toy.onnx on cpu, in ort-1.24.4"


def test_verify_runs_the_other_model_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environments.linked(monkeypatch)
    add_environment("onnxruntime==1.24.4")
    model = str(studies.write_model(tmp_path / "toy.onnx", studies.MODEL))
    assert ot.verify(model, model, environment="ort-1.24.4").good
    for words, what in (
        (["--environment", "gone"], "no environment 'gone'"),
        (["--environment", "ort-1.24.4", "--bisect"], "takes models apart here"),
    ):
        assert main(["verify", model, model, *words]) == 2
        assert what in capsys.readouterr().err


# What a short A/A says of the machine.


EQUAL = Interval(1.001, 0.98, 1.012)
BUSY = Advice("other processes used 1.0 of 2 CPUs during the run", "stop them")


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("fit", "fit to measure: a model differed from itself by 2.0 % at most"),
        ("disturbed", f"disturbed (a model differed from itself by 2.0 % at most): {BUSY}"),
        ("not fit", f"this machine is not fit to measure now: {BUSY}"),
    ],
)
def test_it_is_one_line_with_what_to_do(state: State, line: str) -> None:
    said = str(Fitness(state, EQUAL, () if state == "fit" else (BUSY,)))
    assert said.startswith("this machine is ") and said.endswith(line)


def test_a_model_is_timed_against_itself() -> None:
    model = Path(bench.__file__).parents[2] / "data" / "zoo" / "digit_cnn.onnx"
    found = bench.measure_fitness(model, Cpu(threads=1), 32)
    assert found.equal is not None and found.equal.low < 1.2 and found.equal.high > 0.8
    assert found.state != "not fit" or found.advice


def test_what_does_not_run_is_the_reason(tmp_path: Path) -> None:
    found = bench.measure_fitness(tmp_path / "none.onnx", Cpu(), 1)
    assert found.state == "not fit"
    assert "none.onnx" in str(found)


# The pipeline of the examples reads as many digits as it is shown.


def test_it_reads_a_meter() -> None:
    with (
        as_file(files("ortune.data.zoo") / "digit_cnn.onnx") as model,
        load_engine(model, on="cpu(threads=1)") as engine,
    ):
        found = [pipeline.frame(engine, sample) for sample in pipeline.samples()]
    assert len(found) == 8 and all(len(one) == pipeline.DIGITS for one in found)
