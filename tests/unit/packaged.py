"""Bundles of toy models, opened: what package targets are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortune.bundle.pack import pack
from ortune.bundle.source import Source, unpacked
from ortune.core.backend import Backend
from tests.unit import studies


def bundle(folder: Path, backend: Backend | None = None) -> Path:
    """Pack the winner of the toy study."""
    return pack(studies.study(folder, backend=backend), folder / "toy.ortune")


@contextmanager
def source(folder: Path, backend: Backend | None = None) -> Iterator[Source]:
    """Open that bundle and give its plan."""
    with unpacked(bundle(folder, backend)) as held:
        yield held.source(held.manifest.plans[0])


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
