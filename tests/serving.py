"""A real `ortune serve` in a process of its own: on free ports, ended with the block."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

READY_S, DRAIN_S = 60.0, 30.0


@dataclass(frozen=True)
class Serving:
    """A server that runs.

    Attributes:
        http: Address of the HTTP port, ``127.0.0.1:8000``.
        grpc: Address of the gRPC port.
        process: The one that was started; with ``--processes`` it has children.
        log: What it says, both streams.
    """

    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        """What it said so far."""
        return self.log.read_text(errors="replace")

    def ready(self) -> bool:
        """Whether it says that it takes requests."""
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://{self.http}/v2/health/ready", timeout=5).close()
            return True
        return False

    def end(self, seconds: float = DRAIN_S) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)


@contextmanager
def serving(
    *models: Path | str, options: Sequence[str] = (), cpus: Collection[int] = ()
) -> Iterator[Serving]:
    """Serve models until the block ends.

    Args:
        models: Bundles, plain models or folders of versions.
        options: More words of the command line.
        cpus: What the server is bound to; any without it.

    Raises:
        AssertionError: It does not get ready; with what it said.
    """
    http, grpc = free_ports(2)
    command = [sys.executable, "-m", "ortune.cli.main", "serve", *map(str, models)]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), *options]
    with TemporaryDirectory(prefix="ortune-serving-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as said:
            process = subprocess.Popen(bound(command, cpus), stdout=said, stderr=said)
        made = Serving(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", process, log)
        try:
            _wait(made)
            yield made
        finally:
            ended(process)


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


def _wait(server: Serving) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and server.process.poll() is None:
        if server.ready():
            return
        time.sleep(0.1)
    raise AssertionError(f"the server did not get ready:\n{server.said[-4000:]}")
