"""A real `ortune serve` in a process of its own: on free ports, ended with the block."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

READY_S, DRAIN_S = 90.0, 40.0


@dataclass(frozen=True)
class Serving:
    """A server that runs.

    Attributes:
        process: The one that was started; with ``--processes`` it has children.
        log: What it says, both streams.
        told: What it wrote as it was ready: addresses, models, ids of processes.
    """

    process: subprocess.Popen[bytes]
    log: Path
    told: dict[str, Any]

    @property
    def http(self) -> str:
        """Address of the HTTP port, ``127.0.0.1:8000``."""
        return str(self.told["http"]).partition("://")[2]

    @property
    def grpc(self) -> str:
        """Address of the gRPC port."""
        return str(self.told["grpc"])

    @property
    def said(self) -> str:
        """What it said so far."""
        return self.log.read_text(errors="replace")

    def end(self, seconds: float = DRAIN_S, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=seconds)


@contextmanager
def serving(
    *models: Path | str,
    options: Sequence[str | Path] = (),
    cpus: Collection[int] = (),
    ready_s: float = READY_S,
) -> Iterator[Serving]:
    """Serve models on free ports until the block ends.

    Args:
        models: Bundles, plain models or folders of versions.
        options: More words of the command line.
        cpus: What the server is bound to; any without it.
        ready_s: Seconds until it has to answer.

    Raises:
        AssertionError: It does not get ready; with what it said.
    """
    with TemporaryDirectory(prefix="ortune-serving-") as folder:
        ready, log = Path(folder) / "ready.json", Path(folder) / "log"
        command = [sys.executable, "-m", "ortune.cli.main", "serve", *map(str, models)]
        command += ["--http-port", "0", "--grpc-port", "0", "--json", str(ready)]
        with log.open("wb") as said:
            process = subprocess.Popen(
                bound([*command, *map(str, options)], cpus), stdout=said, stderr=said
            )
        server = Serving(process, log, {})
        try:
            until = time.monotonic() + ready_s
            while not ready.is_file():
                assert process.poll() is None and time.monotonic() < until, server.said[-4000:]
                time.sleep(0.05)
            server.told.update(json.loads(ready.read_text()))
            yield server
        finally:
            children = descendants(process.pid)
            ended(process)
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that one has started, at any depth."""
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def bound(command: Sequence[str], cpus: Collection[int]) -> list[str]:
    """Return a command that runs on some CPUs alone."""
    if not cpus:
        return list(command)
    return ["taskset", "-c", ",".join(map(str, sorted(cpus))), *command]


def ended(process: subprocess.Popen[bytes], seconds: float = DRAIN_S) -> None:
    """End a process that still runs: asked first, then killed."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
    process.kill()
    process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def halves() -> tuple[set[int], set[int]]:
    """Return two sets of CPUs that share none, as even as they get; both the same on one CPU."""
    usable = sorted(os.sched_getaffinity(0))
    middle = len(usable) // 2
    return set(usable[:middle] or usable), set(usable[middle:])
