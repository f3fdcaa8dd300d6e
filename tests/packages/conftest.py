"""These tests fetch packages: they run where `make check-packages` says where to put them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

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
    command = [sys.executable, "-m", "pip", *words.split(), str(folder), *distributions]
    lacking = [one for one in distributions if not any(folder.glob(f"{_stem(one)}-*.whl"))]
    if lacking:
        subprocess.run(command[: -len(distributions)] + lacking, check=True)


def _stem(distribution: str) -> str:
    name, _, version = distribution.partition("==")
    return f"{name.replace('-', '_')}-{version}"
