"""What a build takes and gives, and where builds of one run are kept for reuse."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.core.atomic_write import write_text
from ortune.core.plugins import catalog, codec
from ortune.core.step import Edit, Quantizer, Recipe, Step
from ortune.data.feeds import Feeds
from ortune.quantizers.calibration.ranges_file import SavedRanges
from ortune.search.recipe.shared import SharedCache

_CHECKED = 2


@dataclass(frozen=True)
class Material:
    """The samples that a build may use.

    Attributes:
        feeds: Samples of the model's inputs; None when there are none that run.
        calibration: Indices that quantizers observe.
        saved_ranges: Ranges of an earlier calibration of the model that the build starts from;
            they answer first, and only what they do not hold is observed.
        planned: Recipes that may be built too: what their quantizers watch of a model is observed
            in the pass that the first of them needs.
        shared: Where others may have built or calibrated the same.
    """

    feeds: Feeds | None = None
    calibration: tuple[int, ...] = ()
    saved_ranges: SavedRanges | None = None
    custom_ops: tuple[str, ...] = ()
    planned: tuple[Recipe, ...] = ()
    shared: SharedCache | None = None

    @property
    def comparison_samples(self) -> tuple[int, ...]:
        """The few samples on which rewrites are compared."""
        return tuple(range(min(_CHECKED, self.feeds.count))) if self.feeds else ()

    def compute_key(self, steps: Sequence[Step]) -> str:
        """Return what a build depends on beside its steps.

        That is the file of known ranges and, where a quantizer may calibrate, the samples that it
        observes: a run that goes on with more of them builds anew.
        """
        saved = self.saved_ranges.digest if self.saved_ranges else ""
        if not self.calibration or not any(isinstance(step, Quantizer) for step in steps):
            return saved
        return codec.digest([saved, self.calibration])


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
    """Digest steps, the text of their plugins and a `Material.compute_key`: edits build anew."""
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
