"""Environments that are made at once: their pip links this Python's own packages."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from ortune.measurement.environments import installed


def linked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Have environments made without a download; return the commands that pip was given."""
    asked: list[list[str]] = []
    real = subprocess.run

    def run(command: list[str], **known: Any) -> subprocess.CompletedProcess[str]:
        if "--python" not in command:
            return real(command, **known)
        asked.append(command)
        root = Path(command[command.index("--python") + 1]).parents[1]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = root / "lib" / version / "site-packages"
        (packages / "linked.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(installed.subprocess, "run", run)
    return asked
