"""The machine while a benchmark runs: to itself, or beside a process that loads one core."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

import psutil

KINDS = {
    "spin": "while True: sum(range(10_000))",
    "matmul": "import numpy as np; a = np.ones((512, 512), np.float32)\nwhile True: a @ a",
    "memory": "import numpy as np; a, b = np.ones((2, 8_000_000))\nwhile True: b[:] = a",
}
"""Integer work in the cache; vector units; 64 MB copied to and fro."""
_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_FIRST = f"""import os, sys, threading
os.environ.update(dict.fromkeys({_LIMITS}, "1"))
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
"""
"""One thread of numpy's libraries: one core is to be loaded. The closed pipe ends the process when
its parent goes, however it goes."""


@contextmanager
def to_itself() -> Iterator[None]:
    """Wait until no other benchmark measures, and keep the others waiting."""
    with Path(gettempdir(), "ortune-benchmark.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    time.sleep(0.1)  # so that who waits comes first, not who asks again at once


class Neighbour:
    """A busy process, or none."""

    def __init__(self, process: psutil.Process | None) -> None:
        self._process = process

    def mark(self) -> tuple[float, float]:
        """Return wall and CPU seconds of it so far."""
        if self._process is None:
            return time.monotonic(), 0.0
        used = self._process.cpu_times()
        return time.monotonic(), used.user + used.system

    def share(self, since: tuple[float, float]) -> float:
        """Return the cores that it really used since a mark."""
        wall, used = self.mark()
        return round((used - since[1]) / max(wall - since[0], 1e-9), 3)


@contextmanager
def neighbour(kind: str | None) -> Iterator[Neighbour]:
    """Keep one core busy meanwhile; no kind is no neighbour."""
    if kind is None:
        yield Neighbour(None)
        return
    command = [sys.executable, "-c", _FIRST + KINDS[kind]]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            time.sleep(0.5)
            yield Neighbour(psutil.Process(process.pid))
        finally:
            process.kill()
