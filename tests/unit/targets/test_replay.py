"""A package runs beside its bundle; an environment is named with how to add it."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.bundle.pack import pack
from ortune.bundle.target import unpack_temporarily
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel
from ortune.core.hardware.cpus import effective_cpus
from ortune.measurement.job import Failure
from ortune.measurement.process import WorkerFailed, translate_failures
from ortune.targets.common import replay
from ortune.targets.common.replay import count_threads, find_environment, replay_in_workers


@pytest.fixture(autouse=True)
def untimed() -> None:
    """This file does time."""


def test_environments() -> None:
    assert find_environment("onnxruntime", version("onnxruntime")) == (HERE, None)
    name, fix = find_environment("onnxruntime", "1.2.3")
    assert name == "ort-1.2.3" and fix == "ortune doctor env add onnxruntime==1.2.3"
    assert find_environment("openvino", "1.2.3")[0] == "openvino-1.2.3"


@pytest.mark.parametrize(("told", "fix"), [("add RAM", "add RAM"), ("", "try another")])
def test_a_workers_own_advice_goes_first(told: str, fix: str) -> None:
    failed = WorkerFailed(Failure("it died", "run job.json", told), None)  # type: ignore[arg-type]
    with (
        pytest.raises(BadModel, match="it: it died") as caught,
        translate_failures("it", "try another"),
    ):
        raise failed
    assert caught.value.fix == fix


def test_a_package_is_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "EFFORT", replace(replay.EFFORT, max_blocks=3, seconds=0.05))
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    with unpack_temporarily(bundle) as held:
        source = held.read_source(held.manifest.plans[0])
        same = replay_in_workers(source, source.models, Cpu(threads=1), "onnxruntime here")
        assert same.difference_db == float("inf") and same.by == "onnxruntime here"
        assert same.overhead is not None
        value, low, high = same.overhead
        assert 0 < low <= value <= high
        wrong = studies.write_model(
            tmp_path / "wrong.onnx", studies.TUNED.replace("{1,2,3,4}", "{9,9,9,9}")
        )
        found = replay_in_workers(source, {"": wrong}, Cpu(), "here")
        assert found.difference_db < 10 and found.overhead is None
        with pytest.raises(BadModel, match="does not run under here"):
            replay_in_workers(source, {"": tmp_path / "gone.onnx"}, Cpu(), "here")


def test_threads_are_a_number(tmp_path: Path) -> None:
    """Where a plan takes all CPUs: those of the machine that it was measured on."""
    with unpack_temporarily(pack(studies.study(tmp_path), tmp_path / "toy.ortune")) as held:
        source = held.read_source(held.manifest.plans[0])
    assert count_threads(source) == 1
    for text, expected in (("7", 7), ("0", effective_cpus()), ("9" * 9, effective_cpus())):
        machine = {"effective cpus": text}
        manifest = replace(source.manifest, machine=machine)
        assert count_threads(replace(source, backend=Cpu(), manifest=manifest)) == expected
    with pytest.raises(BadModel, match="5,000 threads"):
        count_threads(replace(source, backend=Cpu(threads=5000)))
