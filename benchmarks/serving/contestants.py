"""The servers that are compared: each as its own docs tune it, and what it can be asked.

OpenVINO Model Server is not among them: PyPI has its client alone, Debian nothing; it comes as an
image, a snap, and archives for other systems.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.serving import bound, free_ports, serving

from benchmarks.peers.environments import environment
from benchmarks.serving import usage

HERE = Path(__file__).resolve().parent
_READY_S = 120


@dataclass(frozen=True)
class Up:
    """A server that runs.

    Attributes:
        pid: What its processes are below.
    """

    http: str
    grpc: str
    pid: int


Start = Callable[[Path, Sequence[Path], Collection[int]], AbstractContextManager[Up]]


@dataclass(frozen=True)
class Contestant:
    """One server.

    Attributes:
        start: Called with a folder of models, the models, and CPUs to be bound to.
        forms: What it can be asked, by the names of `models.FORMS`.
        environment: Whose environment it runs in; empty for ours.
        application: Whether gRPC requests name the model in their metadata too.
    """

    name: str
    start: Start
    forms: tuple[str, ...]
    environment: str = ""
    application: bool = False

    def missing(self) -> str:
        """Say why it cannot run; install it when it is not there. Empty when it can."""
        if not self.environment:
            return ""
        return environment(self.environment, HERE / "requirements").error


@contextmanager
def _ours(folder: Path, models: Sequence[Path], cpus: Collection[int]) -> Iterator[Up]:
    with serving(*models, options=["--on", "cpu(threads=1)"], cpus=cpus) as server:
        yield Up(server.http, server.grpc, server.process.pid)


@contextmanager
def _triton(folder: Path, models: Sequence[Path], cpus: Collection[int]) -> Iterator[Up]:
    from tests.packages import tritons
    from tests.packages.conformance.models import repository

    with TemporaryDirectory(prefix="ortune-triton-") as place:
        made = repository(list(models), Path(place) / "repository")
        with tritons.running(made, Path(place), cpus=cpus) as server:
            yield Up(server.http, server.grpc, server.process.pid)


def _app(name: str, ready: str, more: Mapping[str, str] | None = None) -> Start:
    """Return how an app of `apps` is started.

    Args:
        ready: Path that answers 200 when it is ready; empty: it prints ``ROUTED``.
        more: Environment variables.
    """

    @contextmanager
    def start(folder: Path, models: Sequence[Path], cpus: Collection[int]) -> Iterator[Up]:
        python = environment(name, HERE / "requirements").python
        http, grpc, metrics = free_ports(3)
        script = HERE / "apps" / f"run_{name}.py"
        words = [python, script, folder, http, grpc, metrics]
        command = bound([str(word) for word in words], cpus)
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | _QUIET
        with TemporaryDirectory(prefix=f"ortune-{name}-") as place:
            log = Path(place) / "log"
            with log.open("wb") as said:
                process = subprocess.Popen(
                    command, stdout=said, stderr=said, env=variables | dict(more or {}), cwd=place
                )
            try:
                _wait(process, log, f"http://127.0.0.1:{http}{ready}" if ready else "")
                yield Up(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", process.pid)
            finally:
                below = usage.tree(process.pid)
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=20)
                usage.gone(below)
                process.wait()

    return start


_QUIET = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
_HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_EXPERIMENTAL_PIP_HAPROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
}


def _wait(process: subprocess.Popen[bytes], log: Path, url: str) -> None:
    until = time.monotonic() + _READY_S
    while time.monotonic() < until and process.poll() is None:
        if not url:
            if b"ROUTED" in log.read_bytes():
                return
        else:
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(url, timeout=5).close()
                return
        time.sleep(0.3)
    raise RuntimeError(f"it did not get ready: {log.read_text(errors='replace')[-3000:]}")


_V2 = ("HTTP, binary", "HTTP, JSON", "gRPC")
CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("ortune", _ours, _V2),
        Contestant("Triton, Python backend", _triton, _V2),
        Contestant("KServe", _app("kserve", "/v2/health/ready"), _V2, "kserve"),
        Contestant(
            "MLServer", _app("mlserver", "/v2/health/ready"), ("HTTP, JSON", "gRPC"), "mlserver"
        ),
        Contestant("LitServe", _app("litserve", "/health"), ("HTTP, own JSON",), "litserve"),
        Contestant("Ray Serve, HAProxy", _app("ray", "", _HAPROXY), ("HTTP, raw bytes",), "ray"),
        Contestant("Ray Serve, gRPC", _app("ray", ""), ("gRPC",), "ray", application=True),
    )
}
