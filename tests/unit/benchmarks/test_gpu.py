"""What of the GPU's benchmark needs no GPU: its silence, its models, its table."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.gpu import __main__ as bench
from benchmarks.gpu import models as gpu_models

import ortune as ot
from ortune.core.hardware import gpu

ROOT = Path(__file__).resolve().parents[3]


def test_without_a_device_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "list_gpus", lambda: ())
    out = tmp_path / "gpu.json"
    out.write_text("as it was")
    assert bench.main(["--out", str(out)]) == 0
    assert capsys.readouterr().out == "not run: no device\n"
    assert out.read_text() == "as it was"


def test_the_script_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    run = subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu" / "run.sh", tmp_path],
        env=path,
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "not run: no device\n", "")


def test_the_table_has_every_target_precision_and_level() -> None:
    files = {name: Path(name) for name in ("fp32", "fp16", "int8")}
    every = bench.entries(files)
    assert len({(one.target, one.precision, one.level) for one in every}) == 16
    assert str(every[0].backend) == "cpu(level=disabled)"
    assert str(every[-1].backend) == "cuda" and every[-1].model == Path("fp16")
    assert all(one.backend.runs_on == one.target for one in every)


def test_a_part_that_fails_says_why_and_the_others_go_on() -> None:
    assert "ZeroDivisionError" in bench.part(lambda: 1 / 0)["why"]


def test_answers_are_compared_in_decibels() -> None:
    one = [np.ones(4)]
    assert bench.snr(one, one) == pytest.approx(300)
    assert bench.snr(one, [np.full(4, 1.1)]) == pytest.approx(20)


def test_the_models_run(tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    onnx.save(gpu_models.residual(side=32), small)
    onnx.checker.check_model(small, full_check=True)
    for model in (small, gpu_models.written(tmp_path)[1]):
        sample = gpu_models.samples(model)[0]
        with ot.load(model, on="cpu(threads=1)") as engine:
            (found,) = engine(**sample).values()
        assert np.isfinite(found).all() and found.std() > 0
