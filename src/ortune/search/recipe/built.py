"""What a build gives, and where builds of one run are kept for reuse."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.core.atomic_write import write_text
from ortune.core.plugins import catalog, codec
from ortune.core.step import Edit, Step

STEPS, SOURCE = "ortune.steps", "ortune.source"
"""Metadata of a built file: its steps as JSON, and the digest of the file that it was made of."""


@dataclass(frozen=True)
class BuiltModel:
    """A model file and what each step did to make it.

    Attributes:
        path: The model file; the source itself when no step changed anything.
        content: Digest of all but the metadata: equal where two builds compute the same.
    """

    path: Path
    edits: tuple[Edit, ...]
    content: str = ""

    @property
    def changed(self) -> bool:
        """Whether any step was kept."""
        return any(edit.kept and edit.count for edit in self.edits)


def steps_key(steps: Sequence[Step], material: str = "") -> str:
    """Digest steps and the text of their plugins: an edited plugin builds anew.

    Args:
        material: What else the build depends on, as `Material.compute_key`.
    """
    texts = [[codec.encode(step), catalog.source_digest(step)] for step in steps]
    return codec.digest([texts, material] if material else texts)


def list_file_names(name: str) -> tuple[str, str, str]:
    """Return how the files of a build are called; last the record, which says that it is whole."""
    return f"{name}.onnx.data", f"{name}.onnx", f"{name}.json"


def find_build(
    cache: Path, name: str, steps: Sequence[Step], material: str = ""
) -> BuiltModel | None:
    """Return an earlier build of these very steps on the same material, or None."""
    folder = cache / steps_key(steps, material)
    record, path = folder / f"{name}.json", folder / f"{name}.onnx"
    if not record.is_file() or not path.is_file():
        return None
    try:
        kept = json.loads(record.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(kept, dict) or "edits" not in kept:
        return None
    if kept.get("bytes", _count_bytes(path)) != _count_bytes(path):
        return None
    return BuiltModel(path, codec.decode(tuple[Edit, ...], kept["edits"]), kept.get("content", ""))


def record_build(built: BuiltModel, name: str) -> None:
    """Write the record beside the built file; it marks the build as complete.

    Neither is waited for until the disk has it: a build is large and can be made again. After a
    loss of power a file may be short, which the record tells.
    """
    record = built.path.with_name(f"{name}.json")
    kept = {
        "edits": codec.encode(built.edits),
        "bytes": _count_bytes(built.path),
        "content": built.content,
    }
    write_text(record, json.dumps(kept), durable=False)


def link_or_copy(source: Path, target: Path) -> None:
    """Have a file under another name too; where links are not had, a copy of it."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _count_bytes(path: Path) -> int:
    """Return the bytes of a built file and of the weights beside it."""
    parts = path, path.with_name(f"{path.name}.data")
    return sum(part.stat().st_size for part in parts if part.is_file())
