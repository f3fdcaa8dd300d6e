"""A newcomer's path: the commands and files of the README and the first tutorial, nothing else."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ortune.cli.demo import NEXT

pytest.importorskip("torch", reason="pip install torch==2.13.0")

HOME = Path(__file__).parents[2]
INSTALL = (HOME / "README.md").read_text().partition("\n## Install")[2].partition("\n## ")[0]
TUTORIAL = (HOME / "docs" / "tutorials" / "first-model.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {"python": [sys.executable], "ortune": [sys.executable, "-m", "ortune.cli.main"]}


def path() -> list[str]:
    """Return the commands from the installation to the call from Python."""
    blocks = FENCE.findall(INSTALL + TUTORIAL)
    lines = [line for kind, body in blocks if not kind for line in body.splitlines()]
    return [line for line in lines if line != "ortune demo"]


def files() -> dict[str, str]:
    """Return the programs that a newcomer writes: each says its name in its first line."""
    blocks = [body for kind, body in FENCE.findall(TUTORIAL) if kind == "python"]
    named = {body.splitlines()[0]: body for body in blocks}
    return {first.removeprefix("# "): body for first, body in named.items() if first[-3:] == ".py"}


def follow(folder: Path, seconds: str) -> None:
    """Do what they say; only the search's time may differ."""
    for name, text in files().items():
        (folder / name).write_text(text)
    for line in [*path()[1:], NEXT[-1]]:
        words = shlex.split(line.replace("--time 2m", f"--time {seconds}"))
        command = [*PROGRAMS[words[0]], *words[1:]]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        if line == "python serve.py":
            assert done.stdout.startswith("[[")
    assert (folder / "run" / "report.html").is_file()


def test_it_is_five_commands_and_the_demo_says_the_same() -> None:
    assert len(path()) <= 5
    assert path()[0].startswith("pip install")
    assert set(NEXT[:2]) <= set(path())
    assert set(files()) == {"export.py", "serve.py"}


def test_the_readme_leads_to_a_model_that_is_called(tmp_path: Path) -> None:
    follow(tmp_path, "3s")


@pytest.mark.long
def test_it_takes_less_than_five_minutes(tmp_path: Path) -> None:
    began = time.monotonic()
    follow(tmp_path, "2m")
    assert time.monotonic() - began < 300
