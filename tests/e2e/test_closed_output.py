"""Whoever stops reading what a verb says undoes nothing: what it has made stays, as its status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.models import write_classifier
from tests.picking import Pick, searching_by
from tests.unit.cli.test_left_behind import WRITING

import ortune as ot

MADE = {
    "apply": ("apply {model} simplify -o {out}/m.onnx", "m.onnx"),
    "calibrate": ("calibrate {model} --data {data} -o {out}/ranges.json", "ranges.json"),
    "convert": ("convert {model} {out}/m.onnx --precision fp16", "m.onnx"),
    "extract": ("extract {model} --to h2 -o {out}/m.onnx", "m.onnx"),
    "optimize": (
        "optimize {model} --data {data} --on scripted --baseline scripted --time 3s -o {out}/run",
        "run/ending.json",
    ),
    "pack": ("pack {run} -o {out}/m.ortune", "m.ortune"),
    "profile": ("profile {model} --data {data} -o {out}/profile", "profile"),
    "report": ("report {run} -o {out}/page.html", "page.html"),
    "run": ("run {model} {data}/all.npz -o {out}/outputs.npz", "outputs.npz"),
    "tune": ("tune {model} --data {data} --on cpu(threads=1) --time 3s -o {out}/s.json", "s.json"),
    "verify": (
        "verify {model} {other} --data {data} --budget top1>=base-0.01 --bisect -o {out}/why",
        "why",
    ),
    "cost --timeline": ("cost {model} --timeline --data {data} -o {out}/t.html", "t.html"),
    "demo": ("demo --time 5s -o {out}/demo", "demo/digit-cnn.ortune"),
    "loadtest": (
        "loadtest {run}/pack.ortune --data {data} --goal p99<=1s --time 20s -o {out}/m.ortune",
        "m.ortune",
    ),
}
"""Verb -> a command by which it makes something, and what."""
SHORT = ("apply", "optimize", "pack", "verify")
SHOWN = ("--help", "inspect {model} -v", "explain {run}")
ELSEWHERE = {"export"}
"""It needs PyTorch; its command is made and told like the others."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("task")
    model, data = write_classifier(folder, samples=60)
    out = folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        searching_by(patch, Pick())
        study = ot.optimize(
            model,
            data=data,
            on="scripted",
            baseline="scripted",
            budget="top1>=base-0.1",
            time="60s",
            out=out,
        )
    ot.pack(study, out / "pack.ortune")
    other = folder / "other.onnx"
    proto = onnx.load(model)
    weights = next(t for t in proto.graph.initializer if t.name == "w2")
    weights.raw_data = np.roll(np.frombuffer(weights.raw_data, np.float32), 1).tobytes()
    onnx.save(proto, other)
    return {"model": model, "data": data, "run": out, "other": other}


def start(words: list[str], **streams: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ortune.cli.main", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **streams)  # type: ignore[call-overload, no-any-return]


def closed_pipe() -> int:
    """Return the writing end of a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def test_every_verb_that_makes_something_is_here() -> None:
    assert {*MADE, *ELSEWHERE} == set(WRITING)


@pytest.mark.parametrize(
    "verb",
    [pytest.param(verb, marks=() if verb in SHORT else pytest.mark.long) for verb in MADE],
)
def test_a_closed_pipe_undoes_nothing(places: dict[str, Path], tmp_path: Path, verb: str) -> None:
    command, made = MADE[verb]
    words = [word.format(**places, out=tmp_path) for word in command.split()]
    writing = closed_pipe()
    process = start(words, stdout=writing)
    os.close(writing)
    _, errors = process.communicate(timeout=300)
    assert process.returncode in (0, 1), errors.decode()
    assert (process.returncode == 1) is (verb == "verify"), errors.decode()
    assert b"Traceback" not in errors and b"unexpected" not in errors
    path = tmp_path / made
    assert path.is_file() or any(path.iterdir())


@pytest.mark.parametrize("command", SHOWN)
def test_an_answer_that_nobody_reads_is_no_failure(places: dict[str, Path], command: str) -> None:
    writing = closed_pipe()
    process = start([word.format(**places) for word in command.split()], stdout=writing)
    os.close(writing)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0 and b"fix:" not in errors, errors.decode()


def test_a_stdout_that_the_shell_closed_is_nowhere(
    places: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "m.onnx"
    words = ["convert", str(places["model"]), str(out), "--precision", "fp16"]
    script = ' "$@" >&- <&-'
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m ortune.cli.main{script}", "sh", *words],
        capture_output=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert ot.inspect(out).facts.nodes > 0, "nothing was written into the file that took number 1"
