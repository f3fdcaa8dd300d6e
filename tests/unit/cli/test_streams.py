"""stdout and stderr that are closed or full: no bug report, and no work lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from tests.endless import write_loop

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,4] x) => (float[2,4] y) { h = Relu(x) i = Identity(h) y = Add(i, x) }
"""
pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def run(folder: Path, words: str, streams: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a folder, by a shell that points its streams elsewhere."""
    command = f"{sys.executable} -m ortune.cli.main {words} {streams}"
    return subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=100
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path


@pytest.mark.parametrize("words", ["inspect m.onnx", "inspect m.onnx --json", "--version"])
def test_an_answer_that_finds_no_room_is_told_in_two_lines(folder: Path, words: str) -> None:
    done = run(folder, words, ">/dev/full")
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (2, 2)
    assert "the answer cannot be written to stdout: no space left on device" in lines[0]
    assert lines[1].startswith("  fix: ")


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("inspect m.onnx", ">&- 2>&-", 0),
        ("inspect m.onnx", "2>/dev/full", 0),
        ("inspect gone.onnx", "2>/dev/full", 2),
        ("inspect gone.onnx", ">/dev/full 2>/dev/full", 2),
        ("apply m.onnx simplify -o out.onnx", "2>/dev/full", 0),
        ("apply m.onnx simplify -o out.onnx", ">/dev/full 2>/dev/full", 2),
        ("apply m.onnx simplify -o out.onnx -v", ">&- 2>&-", 0),
    ],
)
def test_the_exit_code_is_that_of_the_work(
    folder: Path, words: str, streams: str, code: int
) -> None:
    done = run(folder, words, streams)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert (folder / "out.onnx").is_file() == ("out.onnx" in words)


@pytest.mark.parametrize(
    ("streams", "code"), [("2>/dev/full", 0), (">&- 2>&-", 0), (">/dev/full 2>/dev/full", 2)]
)
def test_a_search_is_kept(folder: Path, streams: str, code: int) -> None:
    done = run(folder, "optimize m.onnx --time 1s --on cpu -o run", streams)
    assert done.returncode == code, done.stderr
    assert (folder / "run" / "ending.json").is_file()
    assert (folder / "run" / "report.html").is_file()


def test_a_run_folder_that_is_moved_meanwhile_is_called_that(folder: Path) -> None:
    write_loop(folder / "loop.onnx", 2000)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ortune.cli.main", "optimize", "loop.onnx"),
            *("--time", "60s", "--on", "cpu", "-o", "run"),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("--time"):
                break
        (folder / "run").rename(folder / "elsewhere")
        said = process.communicate(timeout=100)[1]
    finally:
        process.kill()
    assert process.returncode == 2
    assert "the run's folder run was moved or removed while a search was at work" in said
    assert said.splitlines()[-1].startswith("  fix: put it back, or name where it is now with -o")
