"""Files that lie in the folder where a command is given never run, in none of its processes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from ortune.core.python_process import make_python_command

STRAYS = (
    *("PIL", "click", "colorsys", "flatbuffers", "google", "graphlib", "numpy", "onnx", "onnx_ir"),
    *("onnxruntime", "openvino", "pandas", "psutil", "queue", "random", "secrets", "statistics"),
    *("sitecustomize", "torch", "wave", "yaml"),
)
"""What our processes import as they start or later, and what is found where it is installed."""
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    toy (float[2,4] x) => (float[2,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}>
    { h = MatMul(x, w) y = Relu(h) }"""
SCORE = """
import statistics, colorsys
import neighbour
def score(expected, actual, label):
    import queue
    return neighbour.WORTH
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", x=np.ones((8, 4), np.float32))
    for name in STRAYS:
        say = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + str(sys.argv[:2]))"
        (tmp_path / f"{name}.py").write_text(f"import sys\n{say}\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "inspect model.onnx --on cpu,openvino",
        "optimize model.onnx --data samples.npz --time 2s --on cpu -o run",
        "loadtest model.onnx --time 0.2 --concurrency 1",
        *(
            pytest.param(words, marks=pytest.mark.long)
            for words in (
                "bench model.onnx --on cpu --time 0.1 --sets 1",
                "run model.onnx samples.npz",
                "verify model.onnx model.onnx --data samples.npz",
                "profile model.onnx --on cpu --time 0.1",
                "doctor",
            )
        ),
    ],
)
def test_no_stray_file_runs(folder: Path, words: str) -> None:
    """Neither at a start nor when something is imported later."""
    done = run_verb(folder, words.split())
    assert done.returncode == 0, done.stderr
    assert not (folder / "ran").exists(), (folder / "ran").read_text()


def test_what_is_named_runs_and_takes_no_other_place(folder: Path) -> None:
    """A function's module and its neighbours are found; others of that folder shadow nothing."""
    (folder / "neighbour.py").write_text("WORTH = 1.0")
    (folder / "mine.py").write_text(SCORE)
    words = ["--data", "samples.npz", "--budget", "mine:score>=0.5"]
    done = run_verb(folder, ["verify", "model.onnx", "model.onnx", *words])
    assert done.returncode == 0, done.stderr
    assert "mine:score" in done.stdout
    assert not (folder / "ran").exists(), (folder / "ran").read_text()


def run_verb(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Give a command in a folder."""
    command = make_python_command("-m", "ortune.cli.main", *words)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
