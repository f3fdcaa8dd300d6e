"""Bad words and data of `ortune optimize`: two lines on stderr, exit 2, nothing written.

Bad models are for every verb in `tests/unit/cli/test_hostile_files.py`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests import hostile
from tests.models import write_classifier

from ortune.cli.main import main

Change = Callable[[Path, Path], list[str]]


@pytest.fixture
def task(tmp_path: Path) -> tuple[Path, Path]:
    return write_classifier(tmp_path / "task", samples=20)


def no_file(model: Path, data: Path) -> list[str]:
    model.unlink()
    return []


def samples(data: Path, **arrays: np.ndarray) -> None:
    for path in data.glob("*.npz"):
        path.unlink()
    np.savez(data / "all.npz", **arrays)  # type: ignore[arg-type]


def unknown_input(model: Path, data: Path) -> list[str]:
    samples(data, pixels=np.zeros((4, 64), np.float32))
    return []


def wrong_rank(model: Path, data: Path) -> list[str]:
    samples(data, x=np.zeros((4, 8, 8), np.float32))
    return []


def wrong_shape(model: Path, data: Path) -> list[str]:
    samples(data, x=np.zeros((4, 63), np.float32))
    return []


def wrong_dtype(model: Path, data: Path) -> list[str]:
    samples(data, x=np.zeros((4, 64), np.int64))
    return []


def nan(model: Path, data: Path) -> list[str]:
    samples(data, x=np.full((4, 64), np.nan, np.float32))
    return []


def empty_folder(model: Path, data: Path) -> list[str]:
    for path in data.glob("*.npz"):
        path.unlink()
    return []


def overlap(model: Path, data: Path) -> list[str]:
    return ["--calibration", str(data)]


CASES: list[tuple[Change, str]] = [
    (no_file, "is not there"),
    (unknown_input, "pixels"),
    (wrong_rank, "expected"),
    (wrong_shape, "Got"),
    (wrong_dtype, "float32"),
    (nan, "NaN"),
    (empty_folder, "no samples"),
    (overlap, "calibration"),
    (lambda m, d: ["--budget", "accuracy>=0.9"], "no metric 'accuracy'"),
    (lambda m, d: ["--budget", "top1>=0.99999"], "the original itself scores"),
    (lambda m, d: ["--on", "gpu"], "no backend 'gpu'"),
    (lambda m, d: ["--on", "cpu(threads=many)"], "many"),
    (lambda m, d: ["--time", "soon"], "soon"),
    (lambda m, d: ["--evaluate", "no_such_module:f"], "no_such_module"),
    (lambda m, d: ["--labels", "nowhere.npy"], "nowhere.npy"),
    (lambda m, d: ["-o", str(m)], "classifier.onnx"),
    (lambda m, d: ["-o", "/proc/nowhere/run"], "/proc/nowhere"),
    (lambda m, d: ["--frobnicate"], "--frobnicate"),
]


@pytest.mark.parametrize(("change", "said"), CASES, ids=[said for _, said in CASES])
def test_bad_input_is_two_lines_and_writes_nothing(
    task: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    model, data = task
    extra = change(model, data)
    out = [] if "-o" in extra else ["-o", "run"]
    before = {p: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()}
    on = [] if "--on" in extra else ["--on", "cpu"]
    words = ["optimize", str(model), "--data", str(data), "--quiet", "--time", "5s"]
    code = main([*words, *on, *out, *extra])
    errors = capsys.readouterr().err
    lines = [line for line in errors.splitlines() if line.strip()]
    assert code == 2, errors
    assert said in errors
    assert len(lines) >= 2
    assert lines[-2].startswith("ortune optimize: ")
    assert lines[-1].startswith("  fix: ")
    after = {p: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()}
    assert before == after, "something was written"


COMMANDS = [
    ("inspect", "cycle", []),
    ("apply", "opset 999", ["simplify", "-o", "out.onnx"]),
    ("optimize", "many nodes", ["-o", "run"]),
    ("bench", "raw too short", []),
    ("convert", "functions that double", ["out.onnx", "--precision", "fp16"]),
]


@pytest.mark.parametrize(("verb", "name", "more"), COMMANDS)
def test_a_hostile_model_costs_little_and_is_two_lines(
    verb: str, name: str, more: list[str], tmp_path: Path
) -> None:
    path = hostile.written(name, tmp_path / "in")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    done = subprocess.run(
        [sys.executable, "-m", "ortune.cli.main", verb, str(path), *more],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        preexec_fn=limit,
    )
    lines = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) == 2
    assert lines[0].startswith(f"ortune {verb}: ")
    assert hostile.REFUSED[name][1] in lines[0]
    assert len(lines[0]) < 400
    assert "/onnxruntime" not in done.stderr
    assert lines[1].startswith("  fix: ")
    assert [one.name for one in tmp_path.iterdir()] == ["in"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("verb", "more"), [("inspect", ["--list=nodes", "-v"]), ("verify", ["-v"]), ("run", ["in"])]
)
def test_names_do_not_steer_a_real_terminal(verb: str, more: list[str], tmp_path: Path) -> None:
    path = hostile.written("control characters", tmp_path / "in")
    np.savez(path.parent / "one.npz", x=np.ones((1, 2, 4), np.float32))
    words = [str(path), *([str(path)] if verb == "verify" else []), *more]
    ours, theirs = os.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "ortune.cli.main", verb, *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    assert running.wait() in (0, 1, 2)
    text = shown.decode()
    assert "unexpected" not in text
    assert not any(mark in text for mark in ("\x1b]", "\x1b[31mred", "\x07", "\u202e"))
