"""What `make check-packages` fetches and installs: wheels, and a real Triton.

Tests of this folder run where ``ORTUNE_PACKAGES`` says where that lies.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ortune.deployment import replay
from tests.packages.tools import PACKAGES

PLACE = os.environ.get("ORTUNE_PACKAGES", "")
INSTALLED = PACKAGES / "triton"
_WAIT_S = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies here unless it was asked for."""
    skip = pytest.mark.skip(reason="fetches other releases of the runtimes: make check-packages")
    for item in items:
        if not PLACE and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def wheels() -> Path:
    """Where wheels are kept from one run to the next."""
    folder = Path(PLACE).resolve() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetched(folder: Path, distributions: Sequence[str]) -> None:
    """Download wheels into a folder unless they are there."""
    words = "download --quiet --no-deps --only-binary :all: --disable-pip-version-check --dest"
    command = [sys.executable, "-m", "pip", *words.split(), str(folder)]
    for one in distributions:  # one by one: two versions of a package are a conflict to pip
        if not any(folder.glob(f"{_stem(one)}-*.whl")):
            subprocess.run([*command, one], check=True)


def _stem(distribution: str) -> str:
    name, _, version = distribution.partition("==")
    return f"{name.replace('-', '_')}-{version}"


@dataclass(frozen=True)
class Server:
    """A Triton that serves a repository.

    Attributes:
        url: Its HTTP port.
        log: What it says.
    """

    url: str
    log: Path

    def post(self, path: str, body: Any = None) -> Any:
        """Return what it answers; without a body it is asked by GET."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/v2/{path}", data, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = self.log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{path}: {error.read().decode()}\n{said}") from None
        return json.loads(text) if text else None


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of toys are compared, not timed: their microseconds say nothing."""
    monkeypatch.setattr(replay, "overhead", lambda bundle, package: (1.0, 0.9, 1.1))


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments of real releases are kept from one run to the next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(PLACE).resolve()))


@pytest.fixture(scope="session")
def triton() -> Path:
    """Where the packages with Triton are installed."""
    if not (INSTALLED / "pytriton" / "tritonserver").is_dir():
        pytest.skip("no Triton: `make check-packages` installs it")
    return INSTALLED


@pytest.fixture
def serve(triton: Path, tmp_path: Path) -> Callable[[Path], Any]:
    """Start the real server on a repository; it ends with the block."""

    @contextmanager
    def started(repository: Path) -> Iterator[Server]:
        home = triton / "pytriton" / "tritonserver"
        backends = tmp_path / "backends"
        shutil.copytree(home / "backends", backends, dirs_exist_ok=True)
        shutil.copytree(Path(__file__).parent / "backend", backends, dirs_exist_ok=True)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = backends / "python" / "triton_python_backend_stub"
        shutil.copy(home / "python_backend_stubs" / version / stub.name, stub)
        server = tmp_path / "tritonserver"
        shutil.copy(home / "bin" / "tritonserver", server)
        for program in (stub, server):
            program.chmod(0o755)
        ports = _free_ports(3)
        log = tmp_path / "triton.log"
        site = next(path for path in sys.path if path.endswith("site-packages"))
        command = [
            str(server),
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            *(f"--{name}-port={port}" for name, port in zip(_PORTS, ports, strict=True)),
        ]
        variables = {
            **os.environ,
            "PYTHONPATH": site,
            "LD_LIBRARY_PATH": str(triton / "nvidia_pytriton.libs"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        with log.open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, env=variables)
        made = Server(f"http://127.0.0.1:{ports[0]}", log)
        try:
            _wait(made, process)
            yield made
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            process.kill()
            process.wait()

    return started


_PORTS = ("http", "grpc", "metrics")


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(urllib.error.URLError, OSError, AssertionError):
            server.post("health/ready")
            return
        time.sleep(0.3)
    pytest.fail(f"Triton did not get ready:\n{server.log.read_text(errors='replace')[-4000:]}")


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
