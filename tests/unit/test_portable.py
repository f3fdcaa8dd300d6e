"""The package imports where POSIX-only modules are missing: Windows and macOS."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import importlib, os, pkgutil, sys
import click, numpy, onnx, onnx_ir, onnxruntime, psutil, rich.live
for name in ("resource", "fcntl", "pwd", "grp", "termios", "posix_ipc", "tty", "pty"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "fork", "killpg", "getloadavg"):
    if hasattr(os, name):
        delattr(os, name)
import ortune
names = [m.name for m in pkgutil.walk_packages(ortune.__path__, "ortune.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
from ortune.core.hardware.cpus import effective_cpus
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine
assert effective_cpus() >= 1 and describe_machine()["cpu"] and noise.read_current_state()
assert noise.compare_snapshots(noise.take_snapshot(), noise.take_snapshot()).format_readings()
print(len(names))
"""


def test_every_module_imports_without_posix() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
