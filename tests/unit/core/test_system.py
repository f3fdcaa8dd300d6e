"""Locks, processes and limits, here and as they are where the system has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ortune.core.hardware.memory import peak_rss
from ortune.core.python_process import make_python_command
from ortune.core.system import kill_group, lock_file, lock_folder, raise_file_limit

HERE = pytest.param(sys.platform, id="here")
PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("ready", flush=True)
sys.stdin.read()
"""
LIMITS = """
import resource
from ortune.core.system import raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
raise_file_limit(128)
raise_file_limit(100)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
raise_file_limit(1000)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_a_file_is_locked_once_and_free_when_it_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("ab") as one, (tmp_path / "lock").open("ab") as other:
        assert lock_file(one.fileno())
        assert not lock_file(other.fileno())
        one.close()
        assert lock_file(other.fileno())


@pytest.mark.skipif(sys.platform == "win32", reason="it opens no folders")
def test_a_folder_is_held_once_and_a_link_to_it_is_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert lock_folder(tmp_path / "link") is None
    assert lock_folder(tmp_path) is not None
    assert lock_folder(tmp_path) is None


def test_where_folders_are_not_opened_none_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert lock_folder(tmp_path) is None


@pytest.mark.parametrize("platform", [HERE, "win32"])
def test_a_process_is_killed_and_where_it_has_a_group_what_it_started(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = subprocess.PIPE
    command = make_python_command("-c", PARENT)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == b"ready"
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", platform)
            kill_group(process)
        assert process.wait(timeout=30) != 0
        if sys.platform != "win32":
            kill_group(process)  # the child of one that was killed alone
        assert process.stdout.read() == b"", "nobody holds its pipe"


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limit")
def test_the_limit_of_open_files_is_raised_up_to_the_hard_one() -> None:
    command = make_python_command("-c", LIMITS)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["128", "256"]


def test_without_a_limit_or_a_count_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    raise_file_limit(1 << 40)
    assert peak_rss(tmp_path / "no status") == 0
