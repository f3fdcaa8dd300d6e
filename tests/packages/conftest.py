"""What `make check-packages` fetches and installs: wheels, and a real Triton.

Tests of this folder run where ``ORTUNE_PACKAGES`` says where that lies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ortune.targets.common import replay
from tests.packages import tritons
from tests.packages.tritons import INSTALLED

PLACE = os.environ.get("ORTUNE_PACKAGES", "")


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
    monkeypatch.setattr(replay, "measure_overhead", lambda bundle, package: (1.0, 0.9, 1.1))


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments of real releases are kept from one run to the next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(PLACE).resolve()))


@pytest.fixture(scope="module")
def ray_apart() -> Iterator[None]:
    """Keep Ray from joining a cluster that runs on this machine."""
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)  # a short path: sockets lie in it
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # beside other work they would hardly run
        yield


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
        with tritons.running(repository, tmp_path) as server:
            yield Server(f"http://{server.http}", server.log)

    return started
