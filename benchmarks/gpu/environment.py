"""What the machine is, what `doctor` says of it, and what the tests of a GPU say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps import Target
from ortune.core.hardware import gpu
from ortune.measurement.machine.machine import describe_machine, package_versions

_ROOT = Path(__file__).resolve().parents[2]
_TOLD = 60
"""Last lines of pytest that are kept."""


def describe(target: Target) -> Iterator[tuple[str, Any]]:
    """Yield the machine, its GPUs and driver, and `ortune doctor`."""
    yield "machine", describe_machine()
    yield "versions", package_versions()
    yield "gpus", gpu.list_gpus()
    yield "driver", gpu.read_driver_versions()
    yield "trtexec", shutil.which("trtexec") or ""
    path = target.work / "doctor.json"
    command = [sys.executable, "-m", "ortune.cli.main", "doctor", "--json", str(path)]
    subprocess.run(command, check=False)
    yield "doctor", json.loads(path.read_text())


def run_tests(*paths: str) -> Iterator[tuple[str, Any]]:
    """Run tests of a GPU; yield pytest's exit code and its last lines."""
    options = ["-q", "-rs", "-p", "no:cacheprovider", "--disable-warnings"]
    command = [sys.executable, "-m", "pytest", *paths, *options]
    run = subprocess.run(
        [*command, "--timeout=90"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    print(run.stdout, run.stderr)
    yield "exit", run.returncode
    yield "said", run.stdout.strip().splitlines()[-_TOLD:]
