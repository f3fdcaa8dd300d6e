"""A real Triton with a stand-in for its onnxruntime backend, started on a repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.packages.tools import PACKAGES
from tests.serving import bound, ended, free_ports

INSTALLED = PACKAGES / "triton"
NUMPY_1 = PACKAGES / "numpy1"
"""An environment with what the server's Python side was built for: only with it tensors come as
NumPy's arrays, and text at all. Without it they come by DLPack. The server takes the packages of
the Python that is first on the path."""
_WAIT_S = 60
_PORTS = ("http", "grpc", "metrics")


@dataclass(frozen=True)
class Running:
    """A Triton that serves a repository.

    Attributes:
        http: Address of its HTTP port, ``127.0.0.1:8000``.
        grpc: Address of its gRPC port.
        log: What it says.
    """

    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def running(
    repository: Path, folder: Path, *, numpy_1: bool = False, cpus: Collection[int] = ()
) -> Iterator[Running]:
    """Serve a repository until the block ends.

    Args:
        repository: Models that name the backend ``onnxruntime``.
        folder: Where the server is put together and writes its log.
        numpy_1: Hand tensors over as arrays of NumPy 1.
        cpus: What the server is bound to; any without it.

    Raises:
        AssertionError: It does not get ready; with the end of its log.
    """
    home = INSTALLED / "pytriton" / "tritonserver"
    backends = folder / "backends"
    shutil.copytree(home / "backends", backends, dirs_exist_ok=True)
    shutil.copytree(Path(__file__).parent / "backend", backends, dirs_exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = backends / "python" / "triton_python_backend_stub"
    shutil.copy(home / "python_backend_stubs" / version / stub.name, stub)
    server = folder / "tritonserver"
    shutil.copy(home / "bin" / "tritonserver", server)
    for program in (stub, server):
        program.chmod(0o755)
    ports = free_ports(3)
    command = [
        str(server),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        *(f"--{name}-port={port}" for name, port in zip(_PORTS, ports, strict=True)),
    ]
    python = NUMPY_1 / "bin" if numpy_1 else Path(sys.executable).parent
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(INSTALLED / "nvidia_pytriton.libs"),
        "PATH": os.pathsep.join([str(python), os.environ["PATH"]]),
    }
    log = folder / "triton.log"
    with log.open("wb") as said:
        process = subprocess.Popen(bound(command, cpus), stdout=said, stderr=said, env=variables)
    made = Running(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", process, log)
    try:
        _wait(made)
        yield made
    finally:
        ended(process, 20)


def _wait(server: Running) -> None:
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until and server.process.poll() is None:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://{server.http}/v2/health/ready", timeout=5).close()
            return
        time.sleep(0.3)
    said = server.log.read_text(errors="replace")[-4000:]
    raise AssertionError(f"Triton did not get ready:\n{said}")
