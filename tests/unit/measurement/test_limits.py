"""Limits that hold wherever a worker is started, from whatever it was asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.cli.main import BAD, main
from ortune.core.errors import BadData, BadSettings
from ortune.core.hardware import memory
from ortune.core.hardware.cpus import effective_cpus
from ortune.data import stream
from ortune.measurement import process
from ortune.measurement.allowance import Allowance
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.workloads.latency import Latency
from ortune.measurement.workloads.throughput import Throughput

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""


@pytest.fixture
def job(tmp_path: Path) -> WorkerJob:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "toy.onnx")
    feeds = tmp_path / "feeds.stream"
    stream.write_stream(feeds, [{"x": np.zeros((1, 4), np.float32)}])
    return WorkerJob({MAIN: tmp_path / "toy.onnx"}, Cpu(), {MAIN: feeds}, tmp_path / "work")


@pytest.mark.parametrize(
    "part",
    [
        {"backend": Cpu(threads=100_000)},
        {"backend": Cpu(parallel=True, inter_threads=100_000)},
        {"backend": Openvino(streams=100_000)},
        {"workload": Throughput(sessions=100_000)},
    ],
)
def test_no_worker_starts_with_more_threads_than_twice_the_cpus(job, part) -> None:
    with pytest.raises(BadSettings, match="is too large: this process may use") as refused:
        Worker(replace(job, **part))
    assert refused.value.fix == f"give {2 * effective_cpus()} or less"
    assert not job.out.exists()


def test_no_worker_starts_with_a_batch_beyond_memory(job) -> None:
    with pytest.raises(BadData, match="a run of 1,000,000,000 samples would take") as refused:
        Worker(replace(job, workload=Latency(batch=10**9)))
    assert "--batch" in refused.value.fix
    assert not job.out.exists()


def test_a_property_that_counts_threads() -> None:
    with pytest.raises(BadSettings, match="is too large"):
        Openvino(config=("COMPILATION_NUM_THREADS=100000",))


def test_an_affinity_of_many_cpus_is_refused_before_they_are_listed() -> None:
    with pytest.raises(BadSettings, match="cannot be read"):
        Cpu(affinity="1-99999999999")


def test_a_worker_takes_the_limit_that_is_in_force(job) -> None:
    with memory.limit_memory(10 * 2**30), Worker(job) as worker:
        assert worker.limit == 10 * 2**30
    with memory.limit_memory(10 * 2**30), Worker(job, memory_limit=2**30) as worker:
        assert worker.limit == 2**30


def test_what_an_answering_worker_holds_is_seen_between_two_looks(job, monkeypatch) -> None:
    rare = Allowance(tick_s=3600)
    monkeypatch.setattr(process, "process_allowance", lambda: rare)
    with (
        Worker(job, memory_limit=20 * 2**20) as worker,
        pytest.raises(WorkerFailed, match="ended by the memory limit of 20 MiB: it wanted"),
    ):
        worker.ask("load")


VERBS = {
    "bench": ["--time", "1"],
    "tune": ["--time", "5s"],
    "profile": [],
    "cost": ["--timeline", "--starts", "1"],
    "optimize": ["--time", "5s", "-o", "run"],
    "verify": ["toy.onnx"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_worker_is_ended_says_so(job, verb, monkeypatch, capsys) -> None:
    monkeypatch.chdir(job.out.parent)
    before = set(job.out.parent.iterdir())
    code = main([verb, "toy.onnx", *VERBS[verb], "--memory-limit", "20M"])
    said = capsys.readouterr().err
    assert code == BAD, said
    assert "ended by the memory limit of 20 MiB: it wanted" in said
    assert set(job.out.parent.iterdir()) == before


def test_convert_says_so_where_numbers_are_not_compared(job, monkeypatch, capsys) -> None:
    monkeypatch.chdir(job.out.parent)
    main(["convert", "toy.onnx", "out.onnx", "--opt-level", "basic", "--memory-limit", "20M"])
    assert "ended by the memory limit of 20 MiB: it wanted" in capsys.readouterr().err


@pytest.mark.parametrize("on", ["cpu(threads=100000)", "openvino(streams=100000)"])
@pytest.mark.parametrize(
    "verb", ["bench", "tune", "profile", "cost --timeline", "optimize", "inspect"]
)
def test_backends_on_the_command_line(job, verb, on, monkeypatch, capsys) -> None:
    monkeypatch.chdir(job.out.parent)
    assert main([*verb.split(), "toy.onnx", "--on", on]) == BAD
    said = capsys.readouterr().err
    assert "100000 is too large: this process may use" in said
    assert f"give {2 * effective_cpus()} or less" in said
