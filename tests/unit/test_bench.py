"""What is timed, in which order, and what a row says; clocks follow a script."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
from ortune_toys.backends.crash import Crash
from ortune_toys.backends.scripted import Scripted

import ortune as ot
from ortune.backends.cpu import Cpu
from ortune.core.errors import OrtuneError
from ortune.core.event import Note
from ortune.core.trial import Burst
from ortune.measurement.energy import Energy
from ortune.study import matrix, rows
from ortune.study.bench import race
from ortune.study.contest import Contestant, Row
from ortune.study.floor import floor
from ortune.workloads.latency import Latency
from ortune.workloads.throughput import Throughput

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
    return [str(one) for one in matrix.backends(on, threads, levels, lambda event: None)]


def test_every_backend_runs_at_every_level_and_thread_count_once() -> None:
    assert spelled("cpu", (1, 2), ("basic", "all")) == [
        "cpu(threads=1, level=basic)",
        "cpu(threads=2, level=basic)",
        "cpu(threads=1)",
        "cpu(threads=2)",
    ]
    assert spelled("cpu,cpu", (2, 2)) == ["cpu(threads=2)"]
    assert spelled("cpu(level=basic),reference") == ["cpu(level=basic)", "reference"]


def test_a_backend_without_levels_is_timed_once_and_that_is_said() -> None:
    told: list[Any] = []
    found = matrix.backends("cpu,reference", (), ("basic", "all"), told.append)
    assert [str(one) for one in found] == ["cpu(level=basic)", "cpu", "reference"]
    assert told == [Note("reference has no levels: it is timed once")]


@pytest.mark.parametrize(
    ("on", "threads", "levels", "said"),
    [
        ("cpu(threads=1)", (2,), (), "threads is given in 'cpu"),
        ("cpu(level=basic)", (), ("all",), "level is given in 'cpu"),
        ("cpu", (0,), (), "0 threads"),
        ("cpu", (), ("fastest",), "no backend of --on has a level 'fastest'"),
        ("reference", (), ("all",), "no backend of --on has a level 'all'"),
        ("gpu", (), (), "no 'gpu' in backends"),
    ],
)
def test_wrong_expansions_are_refused(
    on: str, threads: tuple[int, ...], levels: tuple[str, ...], said: str
) -> None:
    with pytest.raises(OrtuneError, match="fix: ") as caught:
        spelled(on, threads, levels)
    assert said in caught.value.what


def test_batches_make_groups_and_contradictions_are_refused() -> None:
    assert matrix.batched(Latency(), ()) == [Latency()]
    driven = matrix.batched(Throughput(sessions=2), (8, 1, 8))
    assert driven == [Throughput(8, sessions=2), Throughput(1, sessions=2)]
    groups = matrix.contestants([Path("a"), Path("b")], [Cpu()], driven)
    assert [[one.model.name for one in group] for group in groups] == [["a", "b"]] * 2
    for workload, batches in ((Latency(batch=4), (1,)), (Latency(), (0,))):
        with pytest.raises(OrtuneError, match="batch"):
            matrix.batched(workload, batches)


def timed(model: Path, bursts: list[list[Burst]], workload: Any = None) -> dict[str, Any]:
    one = Row(Contestant(model, Cpu(), workload or Latency()), model)
    one.turns, one.runs, one.cpu_ns = bursts, 10, 50
    one.footprints = [{"rss": 5, "uss": None, "peak": 9}, {"rss": 7, "uss": 3, "peak": 8}]
    return rows.row(one, "digest", NO_ENERGY)


def test_a_row_keeps_raw_samples_and_shows_no_percentile_that_few_samples_support(
    model: Path,
) -> None:
    few = timed(model, [[Burst((100, 200), (0.0, 0.0))], [Burst((300, 400), (0.0, 0.5))]])
    assert few["latency_ns"] == [100, 200, 300, 400] and few["p50_ns"] == 250
    assert few["p90_ns"] is few["p99_ns"] is few["p999_ns"] is None
    assert few["turns"] == [[[100, 200]], [[300, 400]]] and few["waited"][1] == [[0.0, 0.5]]
    assert few["sd_ns"] == pytest.approx(129.1, abs=0.1) and few["per_second"] == 4e6
    assert (few["peak_rss"], few["rss"], few["uss"]) == (9, 7, 3)
    assert few["cpu_ns"] == 5
    assert few["joules"] == {"per_run": None, "why": "RAPL: hidden"}

    many = timed(model, [[Burst(tuple(range(10_010)), (0.0,) * 10_010)]])
    assert many["p999_ns"] == pytest.approx(9999, abs=2)
    none = timed(model, [[Burst(tuple(range(9_990)), (0.0,) * 9_990)]])
    assert none["p999_ns"] is None and none["p99_ns"] is not None


def test_entries_that_share_one_measurement_count_once(model: Path) -> None:
    same = [[Burst((5,) * 100 + (7,) * 100, (0.0,) * 200)]]
    assert timed(model, same)["p90_ns"] is None
    assert timed(model, same)["mean_ns"] == 6
    batched = timed(model, [[Burst((100, 300), (0.0, 0.0))]], Latency(batch=4))
    assert batched["per_second"] == pytest.approx(4e9 / 200) and batched["per_sample_ns"] == 50


def test_a_race_finds_the_faster_and_ratios_hold_within_a_batch(model: Path) -> None:
    found = ot.bench(
        model,
        on="scripted(slow=2.0),scripted",
        batches=(1, 4),
        self_check=True,
        sets=2,
        seconds=0.1,
    )
    values = [one["value"] for one in found["ratios"]]
    assert values == pytest.approx([1, 0.5, 1, 1, 0.5])
    assert Counter(row["batch"] for row in found["rows"]) == {1: 3, 4: 2}
    assert [one["row"] for one in found["winners"]] == [1, 4] and found["winner"] is None
    assert found["self_check"]["row"] == 2 and found["self_check"]["equal"]
    assert found["crossovers"][0]["batch"] is None
    assert len({row["digest"] for row in found["rows"]}) == 1
    for row in found["rows"]:
        assert row["error"] is None and len(row["turns"]) == len(row["load_ns"]) == 2
        assert row["cpu_ns"] > 0 and 0 < row["rss"] <= row["peak_rss"]
        assert row["runtime"]["rss"] > 0 and row["allocated"]["why"]["arena"]


def test_a_row_that_fails_stays_and_the_others_are_judged(model: Path) -> None:
    contestants = [(model, Scripted()), (model, Crash()), (model, Scripted(slow=0.5))]
    found = race(contestants, sets=2, seconds=0.1)
    assert "SIGSEGV" in found["rows"][1]["error"] and found["ratios"][1] is None
    assert found["winner"] == 2 and found["winners"][0]["row"] == 2
    with pytest.raises(OrtuneError, match="0 sets"):
        race(contestants, sets=0)
    with pytest.raises(OrtuneError, match="does not run on crash"):
        race(contestants[1:], seconds=0.1)


def test_memory_is_recorded_by_the_runtime(model: Path) -> None:
    found = ot.bench(model, on="cpu(threads=1)", memory_by_node=True, sets=1, seconds=0.1)
    recorded = found["rows"][0]["allocated"]
    assert [node["name"] for node in recorded["nodes"]]
    assert recorded["arena"] is None or recorded["arena"]["peak"] <= recorded["arena"]["held"]


def test_a_backend_that_takes_no_model_has_no_floor(tmp_path: Path) -> None:
    assert floor(Crash(), tmp_path) == {"rss": None, "load_ns": None}
