"""The folder of an engine: what it was built for, whether it is whole, how much all take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ortune.core.atomic_write import held, remove, write_text
from ortune.core.errors import OrtuneError
from ortune.core.outputs import caches
from ortune.core.plugins.plugin import encode

KEY = "key.json"
"""What an engine was built for, in its folder."""
MOST = 20 << 30
"""Bytes that all engines together may take; what was used last stays."""
_LOCKS = ".locks"
WAIT_S = 3600.0
"""For another process that builds the same engine."""
_ALIKE = 2.0
"""A build tells of another whose model has up to so many times its nodes."""


@dataclass(frozen=True)
class EngineKey:
    """All that an engine depends on: where one of it differs, another is built.

    Attributes:
        model: Digest of the file and its external data.
        nodes: Of the model; how long a build takes is estimated by it.
        provider: Execution provider, in the runtime's spelling.
        options: Of the provider and the session, each by its name.
        versions: Of the runtime, the provider's own libraries and the driver.
        device: Name of the device.
        compute_capability: Of a GPU, such as ``9.0``.
        profile: Shapes that it is built for, as spelled; empty for those of the first run.
    """

    model: str
    nodes: int
    provider: str
    options: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    compute_capability: str = ""
    profile: str = ""

    @property
    def digest(self) -> str:
        """32 hex digits: the name of its folder."""
        text = json.dumps(encode(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def folder() -> Path | None:
    """Return the user's folder of engines, there or not; None without a home."""
    return None if (found := caches()) is None else found / "engines"


def estimate(home: Path, key: EngineKey) -> float | None:
    """Return how many seconds a build may take, by earlier ones; None where none is like it.

    Those of as many nodes on the same device decide, else the nearest within a factor of two,
    in proportion.
    """
    took: dict[int, list[float]] = {}
    for told in map(_read, home.glob(f"*/{KEY}")):
        other = told.get("key", {})
        same = (other.get("provider"), other.get("device")) == (key.provider, key.device)
        if same and isinstance(other.get("nodes"), int) and told.get("seconds"):
            took.setdefault(other["nodes"], []).append(float(told["seconds"]))
    ratios = {nodes: key.nodes / nodes for nodes in took if nodes > 0}
    near = [one for one, by in ratios.items() if 1 / _ALIKE <= by <= _ALIKE]
    if not near:
        return None
    nodes = min(near, key=lambda one: abs(one - key.nodes))
    return median(took[nodes]) * ratios[nodes]


def evict(home: Path, most: int, spare: Path | None = None) -> None:
    """Remove engines, those used longest ago first, until all take at most so many bytes.

    Args:
        spare: The folder in use, which stays; so do those that another process opens.
    """
    entries = []
    for path in home.glob(f"*/{KEY}"):
        with suppress(OSError):
            size = sum(one.stat().st_size for one in path.parent.iterdir() if one.is_file())
            entries.append((path.stat().st_mtime, size, path.parent))
    total = sum(size for _, size, _ in entries)
    for _, size, place in sorted(entries):
        if total <= most:
            return
        if place != spare:
            with suppress(OrtuneError), held(_lock(home, place.name), OrtuneError("", fix="")):
                remove(place)
                total -= size


def sound(place: Path, key: EngineKey) -> bool:
    """Whether a folder holds what was kept for a key, to the last byte; nothing is not enough."""
    told = _read(place / KEY)
    files = told.get("files")
    if told.get("key") != encode(key) or not isinstance(files, dict) or not files:
        return False
    try:
        return bool(_files(place) == files)
    except OSError:
        return False


def keep(place: Path, key: EngineKey, seconds: float = 0.0) -> None:
    """Write down what lies in a folder and what it was built for.

    Args:
        seconds: What the build took; what is known of it without them.
    """
    took = seconds or _read(place / KEY).get("seconds", 0.0)
    told = {"key": encode(key), "seconds": took, "files": _files(place)}
    write_text(place / KEY, json.dumps(told, indent=1))


def used(place: Path) -> None:
    """Put a folder last in the order in which engines are removed."""
    with suppress(OSError):
        (place / KEY).touch()


def _files(place: Path) -> dict[str, str]:
    """Return name -> SHA-256 of every file but the key, those in folders too."""
    found = {}
    for path in _inside(place):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(place).as_posix()] = digest
    return found


def state(place: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of change by file: what tells that a session added something."""
    found = {}
    for path in _inside(place):
        with suppress(OSError):
            seen = path.stat()
            found[path] = (seen.st_size, seen.st_mtime_ns)
    return found


def _inside(place: Path) -> list[Path]:
    return sorted(one for one in place.rglob("*") if one.is_file() and one.name != KEY)


def _read(path: Path) -> dict[str, Any]:
    """Return what was kept; empty where it is gone or no longer a mapping."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lock(home: Path, digest: str) -> Path:
    return home / _LOCKS / digest


def alone(home: Path, key: EngineKey, wait_s: float = WAIT_S) -> AbstractContextManager[None]:
    """Keep other processes from the folder of a key; the system frees it when one dies."""
    return held(
        _lock(home, key.digest),
        OrtuneError(
            f"another process has built the same engine for {wait_s / 60:.0f} minutes",
            fix="end it, or wait and try again",
        ),
        wait_s,
    )
