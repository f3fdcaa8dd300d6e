"""A neighbour made on purpose: processes that keep cores busy while something is measured."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from ortune.core.python_process import make_python_command

_CODE = (
    "import os, sys, threading\n"
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n"
    "while True: sum(range(10_000))"
)
"""The closed pipe ends it when this process goes, however it goes."""


@contextmanager
def keep_cores_busy(cores: int = 1) -> Iterator[None]:
    """Keep cores busy meanwhile, one process each; 0 is no neighbour."""
    started = [
        subprocess.Popen(make_python_command("-c", _CODE, isolated=True), stdin=subprocess.PIPE)
        for _ in range(cores)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()
