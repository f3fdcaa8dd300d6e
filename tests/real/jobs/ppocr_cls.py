"""PP-OCR's orientation classifier: lines upright and upside down."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.real import rendered
from tests.real import task as tasks
from tests.real.task import Run, Task, installed

WIDTH = 192


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return tasks.missing(rendered.PACKAGES)


def task(folder: Path) -> Task:
    """Return a search over labelled lines; both ways up of a line are one group."""
    strips, labels = lines()
    other, _ = drawn(rendered.news(), seed=3)
    for part in ("data", "calibration"):
        (folder / part).mkdir()
    groups = np.arange(len(labels)) // 2
    np.savez(folder / "data" / "lines.npz", x=strips, label=labels, group=groups.astype(str))
    np.savez(folder / "calibration" / "lines.npz", x=other)
    return Task(
        (installed("rapidocr", "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"),),
        "top1>=base-0.01",
        score,
        data=folder / "data",
        calibration=folder / "calibration",
    )


def score(run: Run) -> float:
    """Return the share of lines whose way up is found, one by one."""
    strips, labels = lines()
    found = [next(iter(run(x=strips[i : i + 1]).values())).argmax() for i in range(len(strips))]
    return float((np.array(found) == labels).mean())


@cache
def lines() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the review lines, each both ways up."""
    return drawn(rendered.reviews(), seed=2)


def drawn(texts: list[str], seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return line images [2 x texts, 3, 48, 192] and 0 for upright, 1 for upside down."""
    rng = np.random.default_rng(seed)
    strips, labels = [], []
    for text in texts:
        for flipped in (0, 1):
            image = rendered.line(text, rng)
            strips.append(rendered.strip(image.rotate(180) if flipped else image, WIDTH))
            labels.append(flipped)
    return np.concatenate(strips), np.array(labels, np.int64)
