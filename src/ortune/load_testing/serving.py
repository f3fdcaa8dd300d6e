"""A server of our own in a process: on free ports, ready, and ended with the block."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from ortune.core.errors import OrtuneError, gist

_READY_S, _DRAIN_S, _LOOK_S = 120.0, 30.0, 0.05


@dataclass(frozen=True)
class RunningServer:
    """A server that runs.

    Attributes:
        http: ``http://127.0.0.1:PORT``.
        grpc: ``grpc://127.0.0.1:PORT``.
        pid: Of the process that was started; others may be below it.
        log: What it says, both streams.
    """

    http: str
    grpc: str
    pid: int
    log: Path

    def url(self, protocol: str) -> str:
        """Return the address of a protocol."""
        return self.http if protocol == "http" else self.grpc


@contextmanager
def serving(*models: str | Path, options: Sequence[str] = ()) -> Iterator[RunningServer]:
    """Serve models until the block ends: then the server is asked to, after 30 s killed.

    SIGTERM is a KeyboardInterrupt meanwhile: no server outlives what started it.

    Args:
        models: Bundles, plain models, folders of versions.
        options: More words for `ortune serve`, such as ``("--instances", "2")``.

    Raises:
        OrtuneError: It does not get ready, with the last that it said.
    """
    http, grpc = _free_ports()
    command = [sys.executable, "-m", "ortune.cli.main", "serve", *map(str, models)]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), *options]
    with TemporaryDirectory(prefix="ortune-serving-") as folder, _ended_in_order():
        log = Path(folder) / "log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )
        try:
            _wait(process, f"http://127.0.0.1:{http}/v2/health/ready", log)
            yield RunningServer(
                f"http://127.0.0.1:{http}", f"grpc://127.0.0.1:{grpc}", process.pid, log
            )
        finally:
            _end(process)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM unwind the main thread; other threads get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_ports() -> tuple[int, int]:
    """Return two ports of the loopback that nobody listens on."""
    with socket.socket() as one, socket.socket() as two:
        for held in (one, two):
            held.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(_LOOK_S)
    lines = log.read_text(errors="replace").strip().splitlines()
    fix = next((line.strip() for line in lines if line.strip().startswith("fix: ")), "")
    said = next((one for one in reversed(lines) if not one.strip().startswith("fix: ")), "")
    raise OrtuneError(
        f"the server did not get ready: {gist(said) if said else 'it said nothing'}",
        fix=fix.removeprefix("fix: ") or "start it by hand with `ortune serve` and look",
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, and kill what is left of it after a while."""
    below = []
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_DRAIN_S)
    process.kill()
    process.wait()
    for one in below:
        with suppress(psutil.NoSuchProcess):
            one.kill()
