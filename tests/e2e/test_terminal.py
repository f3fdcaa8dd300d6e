"""What a person sees: lines broken between words at any width, and a bar while a verb works."""

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
        text = seen(folder, ["inspect", "m.onnx", "--nodes"], width)
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
    assert "best so far: " in text


def test_what_is_piped_stays_in_its_lines(folder: Path) -> None:
    command = [sys.executable, "-m", "ortune.cli.main", "inspect", "m.onnx", "--nodes"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith(NAME)]
    assert [row.split()[1] for row in rows] == ["MatMul", "Relu"]
    assert not done.stderr
