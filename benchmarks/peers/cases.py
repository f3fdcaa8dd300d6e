"""The models of the peers' race, and their samples as all tools get them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.environments import CACHE
from ortune.core.atomic_write import open_draft

Array: TypeAlias = NDArray[Any]
NOT_FED = ("label", "group")


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        transformer: Some tools want to be told.
    """

    name: str
    transformer: bool = False


CASES = {
    case.name: case
    for case in (
        Case("efficientnet-lite0"),
        Case("minilm", transformer=True),
        Case("resnet50"),
    )
}


def calibration(name: str, made: Path) -> Path:
    """Return a folder of calibration samples, one row a file, labels left out.

    Rows stay apart: their order and number are the same for every tool.
    """
    return _spread(made / "calibration", CACHE / "samples" / name, NOT_FED)


def evaluation(name: str, made: Path) -> Path:
    """Return a folder of the samples for judging, one row a file, with their labels."""
    return _spread(made / "data", CACHE / "evaluation" / name)


def _spread(source: Path, kept: Path, left: tuple[str, ...] = ()) -> Path:
    """Write the rows of a folder's samples below `kept`, once for each content of it."""
    digest = hashlib.sha256(repr(left).encode())
    for path in sorted(source.glob("*.npz")):
        digest.update(path.read_bytes())
    folder = kept / digest.hexdigest()[:16]
    if folder.is_dir():
        return folder
    kept.mkdir(parents=True, exist_ok=True)
    with open_draft(folder) as draft:
        draft.mkdir()
        count = 0
        for path in sorted(source.glob("*.npz")):
            arrays = {k: v for k, v in np.load(path).items() if k not in left}
            for one in _rows(arrays):
                np.savez(draft / f"{count:04}.npz", **one)
                count += 1
    return folder


def _rows(arrays: Mapping[str, Array]) -> Iterator[Mapping[str, Array]]:
    """Yield the rows of a batch; arrays without a batch axis in common are one sample."""
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) > 1 or () in lengths:
        yield arrays
        return
    for row in range(lengths.pop()[0]):
        yield {name: array[row : row + 1] for name, array in arrays.items()}
