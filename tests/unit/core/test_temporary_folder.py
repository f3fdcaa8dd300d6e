"""Folders of the living stay, those of the killed go with the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ortune.core.python_process import make_python_command

HOLD = """
import sys
from ortune.core.temporary_folder import open_temporary_folder
with open_temporary_folder() as folder:
    (folder / "large").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""
LEFT_OPEN = """
from contextlib import ExitStack
from ortune.core.temporary_folder import open_temporary_folder
stack = ExitStack()
print(stack.enter_context(open_temporary_folder()).is_dir())
"""
LINUX = pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders there")


def start(home: Path, code: str = HOLD) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(home)}
    command = make_python_command("-c", code)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def read_folder(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


@LINUX
def test_what_a_killed_process_left_goes_and_all_else_stays(tmp_path: Path) -> None:
    others = [tmp_path / "ortune-cases", tmp_path / "ortune-abcdefgh", tmp_path / "other.tmp"]
    for folder in others:
        folder.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (link := tmp_path / "ortune-12345678.tmp").symlink_to(target)
    killed, alive = start(tmp_path), start(tmp_path)
    left, held = read_folder(killed), read_folder(alive)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert (left / "large").is_file()
    third = start(tmp_path)
    fresh = read_folder(third)
    assert not left.exists()
    assert (held / "large").is_file() and fresh.is_dir()
    for process in (alive, third):
        process.communicate()
    assert sorted(tmp_path.iterdir()) == sorted([*others, target, link])


def test_a_folder_that_nobody_closed_goes_at_the_end(tmp_path: Path) -> None:
    said, _ = start(tmp_path, LEFT_OPEN).communicate()
    assert said.strip() == "True"
    assert not list(tmp_path.iterdir())
