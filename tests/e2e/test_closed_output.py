"""Whoever stops reading what a verb says undoes nothing: what it has made stays, as its status."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.cells import cell_len
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
        "loadtest {run}/pack.ortune --data {data} --goal p99<=1s --time 90s -o {out}/m.ortune",
        "m.ortune",
    ),
}
"""Verb -> a command by which it makes something, and what."""
SHORT = ("apply", "optimize", "pack")
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
    "verb", [pytest.param(verb, marks=() if verb in SHORT else pytest.mark.long) for verb in MADE]
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
    words = ["apply", str(places["model"]), "simplify", "-o", str(out)]
    script = ' "$@" >&- <&-'
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m ortune.cli.main{script}", "sh", *words],
        capture_output=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert ot.inspect(out).facts.nodes > 0, "nothing was written into the file that took number 1"


# What a person sees: lines broken between words at any width, and a bar while a verb works.


NAME = "/encoder/layers.11/attn/self/query/Add_output_scaled"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("terminal")
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["h"], NAME),
        onnx.helper.make_node("Relu", ["h"], ["y"], f"{NAME}/relu"),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["b", 4])],
        [value("y", onnx.TensorProto.FLOAT, ["b", 4])],
        [onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    for key, text in {"author": "somebody", "description": "words " * 40, "version": "3"}.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, text
    onnx.save(model, root / "m.onnx")
    (root / "data").mkdir()
    rng = np.random.default_rng(0)
    for k in range(40):
        np.savez(root / "data" / f"{k}.npz", x=rng.normal(size=(1, 4)).astype(np.float32))
    return root


def seen(folder: Path, words: list[str], width: int) -> str:
    """Return what a terminal of a width gets from a command, escapes and redraws taken out."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "ortune.cli.main", *words]
    env = kept | {"TERM": "xterm"}
    run = subprocess.Popen(command, cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    found = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        found += chunk
    run.wait(timeout=60)
    os.close(master)
    return ESCAPES.sub("", found.decode()).replace("\r\n", "\n").replace("\r", "\n")


def test_no_line_is_wider_than_the_terminal_and_names_are_whole(folder: Path) -> None:
    for width in (60, 80, 120):
        text = seen(folder, ["inspect", "m.onnx", "--list=nodes"], width)
        wide = [line for line in text.splitlines() if cell_len(line) > width]
        assert not wide, wide
        assert f"{NAME}/relu" in text.split(), f"broken at {width}"
        assert " ".join(["words"] * 3) in " ".join(text.split())


def test_metadata_is_one_row(folder: Path) -> None:
    text = seen(folder, ["inspect", "m.onnx"], 200)
    (row,) = [line for line in text.splitlines() if line.startswith("metadata")]
    assert "author=somebody" in row and "version=3" in row


def test_an_error_is_broken_between_words(folder: Path) -> None:
    text = seen(folder, ["bench", "m.onnx", "--on", "cpu(threads=2)", "--threads", "1,2"], 40)
    assert max(map(cell_len, text.splitlines())) <= 40
    assert "fix: leave one of them out" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "bar"),
    [
        ("bench m.onnx --time 1 --sets 2", "timing"),
        ("profile m.onnx --time 0.5", "profiling"),
        ("tune m.onnx --time 4s", "left"),
        ("extract m.onnx --to h -o piece.onnx --data data", "running the whole model"),
    ],
)
def test_a_verb_shows_how_far_it_is(folder: Path, words: str, bar: str) -> None:
    text = seen(folder, words.split(), 100)
    drawn = [line for line in text.splitlines() if line.startswith(("━", "─" * 30))]
    assert any(bar in line for line in drawn), text


def test_a_search_counts_its_plans_through(folder: Path) -> None:
    words = "optimize m.onnx --data data --on cpu(threads=1) --time 8s -o run"
    text = seen(folder, words.split(), 80)
    counted = [int(n) for n in re.findall(r"^\[(\d+), \d+:\d\d left\]", text, re.MULTILINE)]
    assert counted and counted == sorted(counted), text


def test_what_is_piped_stays_in_its_lines(folder: Path) -> None:
    command = [sys.executable, "-m", "ortune.cli.main", "inspect", "m.onnx", "--list=nodes"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith(NAME)]
    assert [row.split()[1] for row in rows] == ["MatMul", "Relu"]
    assert not done.stderr
