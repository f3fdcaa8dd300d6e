"""Kept results: a file each in the user's cache folder, named by all that it depends on.

None is ever needed: what cannot be read or written is measured again, or not kept. Whatever lies
there is checked before it is used.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ortune.analysis.sensitivity.result import Sensitivity
from ortune.core.atomic_write import remove, write_text
from ortune.core.errors import OrtuneError
from ortune.core.outputs import caches
from ortune.core.plugins import codec, stored

_LARGEST = 16 * 1024 * 1024
"""Bytes of a file that is read."""
_FILES = 256
"""Results that are kept; the one written longest ago goes first."""


def folder() -> Path | None:
    """Return where results lie, there or not; None without a home."""
    ours = caches()
    return None if ours is None else ours / "sensitivity"


def find(key: str) -> Sensitivity | None:
    """Return what is kept under a key; None where there is nothing that can be used."""
    home = folder()
    if home is None:
        return None
    try:
        with (home / f"{key}.json").open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            return None
        told = stored.loads(data)
        if not isinstance(told, dict) or told.pop("key", None) != key:
            return None
        return codec.decode(Sensitivity, told)
    except (OSError, ValueError, OrtuneError):
        return None


def keep(key: str, found: Sensitivity) -> None:
    """Keep a result that is whole; that it cannot be written changes nothing."""
    home = folder()
    if home is None or found.finished != "done":
        return
    text = json.dumps({"key": key, **codec.encode(found)}, separators=(",", ":"))
    with suppress(OSError, OrtuneError):
        write_text(home / f"{key}.json", text + "\n", durable=False)
        dated = sorted((path.stat().st_mtime, path) for path in home.glob("*.json"))
        for _, old in dated[:-_FILES]:
            remove(old)
