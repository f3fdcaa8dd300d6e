"""What of the GPU's benchmark needs no GPU: its silence, its steps, its judgement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.gpu import __main__ as bench
from benchmarks.gpu import found, levels
from benchmarks.gpu import models as gpu_models
from benchmarks.gpu.steps import Step

import ortune as ot
from ortune.core.backend import VERIFIED
from ortune.core.hardware import gpu

ROOT = Path(__file__).resolve().parents[3]


def test_without_a_device_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "list_gpus", lambda: ())
    assert bench.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "not run: no device\n"
    assert not (tmp_path / "out").exists()


def test_a_step_that_fails_or_has_no_time_lets_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [Step("unheard-of", 60), Step("tensorrt", 60)]
    monkeypatch.setattr(bench, "find_steps", lambda names: steps)
    assert bench.main(["--dry", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "unheard-of: exit code 1" in said and "tensorrt: exit code 0" in said
    assert "missing" in json.loads((tmp_path / "tensorrt.json").read_text())
    assert bench.main(["--dry", "--out", str(tmp_path), "--seconds", "5"]) == 1
    assert "tensorrt: left out" in capsys.readouterr().out


def test_answers_are_compared_in_decibels() -> None:
    one = [np.ones(4)]
    assert levels.compute_snr(one, one) == pytest.approx(300)
    assert levels.compute_snr(one, [np.full(4, 1.1)]) == pytest.approx(20)
    assert levels.compute_snr(one, [np.full(4, np.nan)]) is None


def test_the_best_by_hand_is_the_fastest_within_the_budget() -> None:
    times = {"ortune": [2.0, 2.2], "right": [1.0, 1.1], "wrong": [0.1, 0.1], "nan": [0.1, 0.1]}
    race = found.judge_race(times, {"ortune": 90.0, "right": 50.0, "wrong": 12.0, "nan": None})
    assert race["best_by_hand"] == "right"
    assert race["found_over_best"] == pytest.approx([2.0] * 3)


def test_the_models_run(tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    onnx.save(gpu_models.residual(side=32), small)
    onnx.checker.check_model(small, full_check=True)
    sample = gpu_models.samples(small)[0]
    with ot.load(small, on="cpu(threads=1)") as engine:
        (scores,) = engine(**sample).values()
    assert scores.shape == (8, 1000) and np.isfinite(scores).all() and scores.std() > 0


def test_what_is_called_verified_has_passed_its_tests() -> None:
    for path in VERIFIED.values():
        results = json.loads((ROOT / path).read_text())
        assert any(" passed" in line for line in results["tests"]["said"])
