"""`run` keeps no outputs in memory, and is held to the memory limit itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.cli.main import BAD, DONE, main

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "toy.onnx")
    np.savez(tmp_path / "in.npz", x=np.arange(120, dtype=np.float32).reshape(30, 4))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_outputs_go_to_one_file(folder: Path, capsys) -> None:
    assert main(["run", "toy.onnx", "in.npz", "in.npz", "-o", "out.npz", "--json"]) == DONE
    told = json.loads(capsys.readouterr().out)
    assert told["samples"] == len(told["latency_ns"]) == 60
    assert told["outputs"] == {"y": [1, 4]}
    wanted = 2 * np.load("in.npz")["x"]
    assert np.array_equal(np.load("out.npz")["y"], np.concatenate([wanted, wanted]))
    assert main(["run", "toy.onnx", "in.npz", "-o", "out"]) == BAD
    assert "writes into a folder" in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_a_model_that_takes_more_than_the_limit_is_ended(folder: Path) -> None:
    words = ["run", "toy.onnx", "in.npz", "-o", "out.npz", "--memory-limit", "10M"]
    np.savez(folder / "in.npz", x=np.zeros((200_000, 4), np.float32))
    code = f"import sys; from ortune.cli.main import main; sys.exit(main({words}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == BAD
    first, second = done.stderr.strip().splitlines()[-2:]
    assert "the memory limit" in first
    assert second.startswith("  fix: ")
    assert not (folder / "out.npz").exists()
