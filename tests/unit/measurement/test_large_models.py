"""Two large models are loaded in turns; pages of large files are not kept while a worker runs."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.core.hardware import memory
from ortune.data import stream
from ortune.measurement import process
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker
from ortune.measurement.timing.operators import record_kernels
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.measurement.timing.turns import wait_until_ready
from ortune.measurement.worker import tasks
from ortune.measurement.worker.workbench import Workbench

MODEL = '<ir_version: 8, opset_import: ["": 17]> toy (float[1,4] x) => (float[1,4] y) {y = Exp(x)}'


@pytest.fixture
def job(tmp_path: Path) -> Any:
    feeds = tmp_path / "feeds.stream"
    stream.write_stream(feeds, [{"x": np.full((1, 4), k, np.float32)} for k in range(3)])

    def make_job(name: str, size: int = 0) -> WorkerJob:
        model = onnx.parser.parse_model(MODEL)
        model.doc_string = "x" * size
        onnx.save(model, path := tmp_path / f"{name}.onnx")
        return WorkerJob({MAIN: path}, Cpu(threads=1), {MAIN: feeds}, tmp_path / name)

    return make_job


def asked(job: WorkerJob) -> list[str]:
    lines = (job.out / "commands.jsonl").read_text().splitlines()
    return [json.loads(line)["do"] for line in lines]


def load_both(jobs: tuple[WorkerJob, WorkerJob]) -> None:
    """Load two, then run the first."""
    with Worker(jobs[0]) as one, Worker(jobs[1]) as two:
        two.take_turns_with(one)
        wait_until_ready(one)
        wait_until_ready(two)
        one.ask("burst", at=0, runs=2)
        two.ask("wait_idle")


def test_two_large_models_are_never_loaded_at_once(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOADING", 1 << 40)
    monkeypatch.setattr(process, "LARGE_PAIR", 1)
    jobs = job("one"), job("two")
    load_both(jobs)
    assert asked(jobs[0]) == ["load", "first", "unload", "load", "first", "burst"]
    assert asked(jobs[1]) == ["load", "first", "unload", "wait_idle"]


@pytest.mark.parametrize("bound", ["LOADING", "LARGE_PAIR"])
def test_what_is_small_or_fits_the_memory_stays_loaded(
    job: Any, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    jobs = job("one"), job("two")
    monkeypatch.setattr(process, bound, {"LOADING": 1 << 40, "LARGE_PAIR": 1}[bound])
    load_both(jobs)
    assert "unload" not in asked(jobs[0]) + asked(jobs[1])


@pytest.mark.parametrize(("small", "turns"), [(40_000, False), (60_000, True)])
def test_a_model_of_less_than_half_the_size_stays_beside_the_other(
    job: Any, monkeypatch: pytest.MonkeyPatch, small: int, turns: bool
) -> None:
    monkeypatch.setattr(process, "LOADING", 1 << 40)
    monkeypatch.setattr(process, "LARGE_PAIR", 130_000)
    jobs = job("one", 100_000), job("two", small)
    load_both(jobs)
    assert ("unload" in asked(jobs[1])) == turns


def test_a_pair_in_turns_is_timed_as_any(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOADING", 1 << 40)
    monkeypatch.setattr(process, "LARGE_PAIR", 1)
    with Worker(job("one")) as one, Worker(job("two")) as two:
        two.take_turns_with(one)
        wait_until_ready(one)
        wait_until_ready(two)
        pair = time_pair(one, two, Effort(max_blocks=1, seconds=0.1, burst=0.01))
        assert len(pair.blocks) == 1
        two.close()
        one.ask("burst", at=0, runs=1)


def test_a_closed_model_answers_as_before(job: Any, tmp_path: Path) -> None:
    with ExitStack() as stack:
        bench = Workbench(job("bench"), stack)
        tasks.load(bench)
        before = tasks.score(bench, [2], [], save=str(tmp_path / "one"))
        tasks.burst(bench, 0, 2)
        assert bench.cached_bytes
        tasks.unload(bench)
        assert not bench.sessions and not bench.cached_bytes
        tasks.load(bench)
        assert len(tasks.burst(bench, 0, 2)["latency_ns"]) == 2
        assert tasks.score(bench, [2], [], save=str(tmp_path / "two")).keys() == before.keys()
    one, two = (stream.Stream(tmp_path / name)[0]["y"] for name in ("one", "two"))
    assert (one == two).all()


def test_a_recording_session_takes_the_place_of_the_plain_one(job: Any, tmp_path: Path) -> None:
    with Worker(job("one")) as worker:
        wait_until_ready(worker)
        recorded = record_kernels(worker, tmp_path / "r", seconds=5, load_ns=1, run_ns=1)
        assert [node.op_type for node in recorded.nodes] == ["Exp"]
        assert len(worker.ask("burst", at=0, runs=2)["latency_ns"]) == 2


def test_who_cannot_record_keeps_its_session(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __enter__(self) -> None:
            raise ValueError("no profiler")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(Cpu, "record", lambda *_, **__: Refusing())
    with ExitStack() as stack:
        made = job("bench")
        bench = Workbench(made, stack)
        tasks.load(bench)
        with pytest.raises(ValueError, match="no profiler"):
            bench.record(made.out)
        assert len(tasks.burst(bench, 0, 2)["latency_ns"]) == 2


def test_pages_of_a_large_file_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_resident() -> int:
        lines = Path("/proc/self/smaps").read_text().split("\n")
        at = next(k for k, line in enumerate(lines) if line.endswith("/large"))
        return next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss"))

    monkeypatch.setattr(memory, "LARGE_MAP", 1 << 20)
    (tmp_path / "large").write_bytes(bytes(range(256)) * 8192)
    data = memory.map_file(tmp_path / "large")
    assert sum(data[::4096]) == 0 and read_resident() == 2048
    memory.release_maps()
    assert read_resident() == 0
    assert data[257] == 1
    data.close()
    memory.release_maps()
