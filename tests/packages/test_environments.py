"""Real environments: OpenVINO where the main one has none, and CUDA without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.packages.test_without_openvino import python as python
from tests.packages.tools import ROOT
from tests.unit import studies


class Place:
    """A Python without OpenVINO, and a cache folder of its own."""

    def __init__(self, python: Path, home: Path) -> None:
        self.python, self.home = python, home

    def run(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        known = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(self.home)}
        command = [str(self.python), "-m", "ortune.cli.main", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=known)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def told(self, *words: object, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def place(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(python, tmp_path_factory.mktemp("cache"))


def model_and_samples(folder: Path) -> tuple[Path, Path]:
    model = studies.write_model(folder / "toy.onnx", studies.MODEL)
    samples = folder / "samples"
    samples.mkdir()
    for index in range(8):
        x = np.random.default_rng(index).normal(0, 4, (1, 4)).astype(np.float32)
        np.savez(samples / f"{index}.npz", x=x)
    return model, samples


def test_openvino_is_made_used_and_removed(place: Place, tmp_path: Path) -> None:
    model, samples = model_and_samples(tmp_path)
    assert "pip install" in place.run("bench", model, "--on", "openvino", code=2).stderr
    made = place.told("doctor", "env", "add", "openvino", "--name", "vino")
    assert made["states"] == {"cpu": "works", "openvino": "works"}
    assert "openvino" in made["versions"] or "onnxruntime-ep-openvino" in made["versions"]
    missing = place.run("optimize", model, "--on", "openvino", "-o", tmp_path / "no", code=2)
    assert '--on "openvino in vino"' in missing.stderr
    root = tmp_path / "run"
    place.run("optimize", model, "--data", samples, "--time", "20", "-o", root)
    job = json.loads((root / "header.json").read_text())["job"]
    assert job["on"] == "auto,openvino in vino"
    trials = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
    ran = [one for one in trials if "openvino" in json.dumps(one["plan"])]
    assert any(one["ratio"] for one in ran), "OpenVINO was timed beside the original"
    doctor = place.told("doctor")
    (row,) = doctor["environments"]
    assert row["offers"]["openvino"]["state"] == "works"
    here = {one["name"]: one["state"] for one in doctor["backends"]}
    assert (here["cpu"], here["openvino"]) == ("works", "not installed")
    place.run("doctor", "env", "remove", "vino")
    assert place.told("doctor", "env", "list")["environments"] == []
    left = place.run("optimize", model, "--data", samples, "--time", "20", "-o", root, code=2)
    assert "its --on is auto,openvino in vino, not auto" in left.stderr


def test_the_wheel_for_cuda_says_that_there_is_no_device(place: Place, tmp_path: Path) -> None:
    """Two gigabytes are fetched: where ``ORTUNE_CUDA`` says so."""
    if not os.environ.get("ORTUNE_CUDA"):
        pytest.skip("fetches CUDA and cuDNN: ORTUNE_CUDA=1")
    found = place.told("doctor", "env", "add", "cuda", code=1)
    assert found["states"]["cpu"] == "works" and found["states"]["cuda"] == "no device"
    assert (
        found["versions"]["onnxruntime-gpu"] == "1.31.1" and "onnxruntime" not in found["versions"]
    )
    assert found["driver"]["cudnn"].startswith("9.") and found["driver"]["cuda"].startswith("13.")
    model, _ = model_and_samples(tmp_path)
    said = place.run("bench", model, "--on", "cuda", "--environment", "cuda-1.31.1", code=2).stderr
    assert "cannot run in environment 'cuda-1.31.1'" in said
    place.run("doctor", "env", "remove", "cuda-1.31.1")
