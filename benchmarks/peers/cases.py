"""The models, their samples, and the budgets that all files are judged by."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.real.samples import written

from benchmarks.peers.environments import CACHE

NOT_FED = ("label", "group")


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        write: Gives its folder: ``model.onnx``, ``data``, ``calibration``.
        budgets: The first decides which files count; the metrics of all are shown.
        transformer: Some tools want to be told.
    """

    name: str
    write: Callable[[str], Path]
    budgets: tuple[str, ...]
    transformer: bool = False


def _shape(name: str) -> Path:
    from benchmarks.shapes import write

    return write(name)


CASES = {
    case.name: case
    for case in (
        Case("efficientnet-lite0", written, ("agreement>=0.9", "top1>=base-0.01")),
        Case(
            "minilm",
            written,
            ("benchmarks.sentences:cosine>=0.99",),
            transformer=True,
        ),
        Case("resnet50", _shape, ("snr>=30",)),
    )
}


def calibration(name: str, made: Path) -> Path:
    """Return a folder of calibration samples, one row a file, labels left out.

    Rows stay apart: their order and number are the same for every tool.
    """
    folder = CACHE / "samples" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    count = 0
    for path in sorted((made / "calibration").glob("*.npz")):
        arrays = {k: v for k, v in np.load(path).items() if k not in NOT_FED}
        for row in range(len(next(iter(arrays.values())))):
            one = {name: array[row : row + 1] for name, array in arrays.items()}
            np.savez(folder / f"{count:04}.npz", **one)
            count += 1
    return folder
