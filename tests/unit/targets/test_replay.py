"""A package runs beside its bundle; an environment is named with how to add it."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.bundle.pack import pack
from ortune.bundle.source import unpacked
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel
from ortune.core.hardware.cpus import effective_cpus
from ortune.measurement.job import Failure
from ortune.measurement.process import WorkerFailed
from ortune.targets.common import replay
from ortune.targets.common.replay import by_worker, environment, threads, worker_errors


@pytest.fixture(autouse=True)
def untimed() -> None:
    """This file does time."""


def test_environments() -> None:
    assert environment("onnxruntime", version("onnxruntime")) == (HERE, None)
    name, fix = environment("onnxruntime", "1.2.3")
    assert name == "ort-1.2.3" and fix == "ortune env add onnxruntime==1.2.3"
    assert environment("openvino", "1.2.3")[0] == "openvino-1.2.3"


@pytest.mark.parametrize(("told", "fix"), [("add RAM", "add RAM"), ("", "try another")])
def test_a_workers_own_advice_goes_first(told: str, fix: str) -> None:
    failed = WorkerFailed(Failure("it died", "run job.json", told), None)  # type: ignore[arg-type]
    with (
        pytest.raises(BadModel, match="it: it died") as caught,
        worker_errors("it", "try another"),
    ):
        raise failed
    assert caught.value.fix == fix


def test_a_package_is_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "EFFORT", replace(replay.EFFORT, max_blocks=3, seconds=0.05))
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    with unpacked(bundle) as held:
        source = held.source(held.manifest.plans[0])
        same = by_worker(source, source.models, Cpu(threads=1), "onnxruntime here")
        assert same.difference_db == float("inf") and same.by == "onnxruntime here"
        assert same.overhead is not None
        value, low, high = same.overhead
        assert 0 < low <= value <= high
        wrong = studies.write_model(
            tmp_path / "wrong.onnx", studies.TUNED.replace("{1,2,3,4}", "{9,9,9,9}")
        )
        found = by_worker(source, {"": wrong}, Cpu(), "here")
        assert found.difference_db < 10 and found.overhead is None
        with pytest.raises(BadModel, match="does not run under here"):
            by_worker(source, {"": tmp_path / "gone.onnx"}, Cpu(), "here")


def test_threads_are_a_number(tmp_path: Path) -> None:
    """Where a plan takes all CPUs: those of the machine that it was measured on."""
    with unpacked(pack(studies.study(tmp_path), tmp_path / "toy.ortune")) as held:
        source = held.source(held.manifest.plans[0])
    assert threads(source) == 1
    for text, expected in (("7", 7), ("0", effective_cpus()), ("9" * 9, effective_cpus())):
        machine = {"effective cpus": text}
        manifest = replace(source.manifest, machine=machine)
        assert threads(replace(source, backend=Cpu(), manifest=manifest)) == expected
    with pytest.raises(BadModel, match="5,000 threads"):
        threads(replace(source, backend=Cpu(threads=5000)))
