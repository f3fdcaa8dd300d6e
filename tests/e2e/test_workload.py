"""Searches and benches under a workload that is not the plain latency."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from ortune_toys.backends.scripted import Scripted
from tests.models import write_classifier

import ortune as ot
from ortune.analysis.benchmark.bench import race_contestants
from ortune.backends.cpu import Cpu
from ortune.core.hardware.cpus import effective_cpus
from ortune.data import stream
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker
from ortune.measurement.workloads.throughput import Throughput


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("task"))[0]


def search(model: Path, out: Path, workload: str) -> ot.Study:
    return ot.optimize(
        model, on="scripted", baseline="scripted", workload=workload, time="30s", out=out
    )


def test_a_search_for_throughput_tries_the_splits_and_names_its_workload(
    model: Path, tmp_path: Path
) -> None:
    study = search(model, tmp_path / "run", "throughput(sessions=2)")
    backends = {str(trial.plan.backend) for trial in study.trials}
    assert {"scripted", "scripted(threads=1)"} <= backends or effective_cpus() == 1
    assert str(study.job.workload) == "throughput(sessions=2)"
    base = study.baseline.measurement
    assert base is not None
    entries = base.pairs[0].blocks[0].baseline.latency_ns
    scripted_ns = 1000 * model.stat().st_size
    assert entries[0] == pytest.approx(scripted_ns / 2, rel=1e-3)
    bundle = ot.pack(study, tmp_path / "m.ortune")
    manifest = json.loads(zipfile.ZipFile(bundle).read("manifest.json"))
    assert manifest["workload"] == "throughput(sessions=2)"
    with pytest.raises(ot.OrtuneError, match=r"its workload is throughput\(sessions=2\)"):
        search(model, tmp_path / "run", "latency")


def test_a_bench_reports_what_the_workload_counts(model: Path) -> None:
    # A run takes 1 us a byte, times `slow`: 2 ms and 0.5 ms.
    slow = 2000 / model.stat().st_size
    found = race_contestants(
        [(model, Scripted(slow=slow)), (model, Scripted(slow=slow / 4))],
        workload="arrivals(rate=1000, pattern=constant, seconds=0.02)",
        time=0.1,
        sets=1,
    )
    slower, faster = (row["reported"] for row in found.rows)
    assert not slower["keeps_up"]
    assert slower["load"] == pytest.approx(2, rel=0.01)
    assert slower["achieved_rate"] == pytest.approx(500, rel=0.1)
    assert "cannot keep up" in slower["notes"][0]
    assert faster["keeps_up"]
    assert faster["achieved_rate"] == pytest.approx(1000, rel=0.1)


def test_two_real_sessions_of_one_thread_answer_as_one_does(tmp_path: Path) -> None:
    """Side by side in one process: both splits run, count alike and give the same outputs."""
    DigitCnn().write(tmp_path / "sample")
    rng = np.random.default_rng(0)
    stream.write_stream(
        tmp_path / "f", ({"image": rng.random((1, 1, 28, 28), np.float32)} for _ in range(4))
    )
    told = {}
    for sessions, threads in ((2, 1), (1, 2)):
        out = tmp_path / f"{sessions}x{threads}"
        feeds, workload = {MAIN: tmp_path / "f"}, Throughput(sessions=sessions)
        job = WorkerJob(
            {MAIN: tmp_path / "sample" / "model.onnx"}, Cpu(threads=threads), feeds, out, workload
        )
        with Worker(job) as worker:
            worker.ask("load")
            worker.ask("first")
            timed = worker.ask("burst", at=0, runs=6, each=5, drop=1)
            (details,) = worker.ask("details")["details"]
            saved = str(out / "y")
            worker.ask("score", indices=[0, 1, 2, 3], metrics=[], save=saved)
        assert len(set(timed["latency_ns"])) == 1
        assert details["sessions"] == sessions
        assert len(details["runs_ns"]) == 30
        told[sessions] = np.stack([y["logits"] for y in stream.Stream(Path(saved))])
    assert told[2] == pytest.approx(told[1], abs=1e-4)
