"""PP-OCRv6's detector: pages of ten lines, the boxes known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.real import rendered
from tests.real import task as tasks
from tests.real.rendered import Box
from tests.real.task import Run, Task, installed

PAGES = 3
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return tasks.missing((*rendered.PACKAGES, "scipy"))


def task(folder: Path) -> Task:
    """Return a search that is scored by the boxes' overlap."""
    return Task(
        (installed("rapidocr", "rapidocr/models/PP-OCRv6_det_small.onnx"),),
        "score>=base-0.01",
        lambda run: float(np.mean(evaluate(run))),
        evaluate=f"{__name__}:evaluate",
    )


def evaluate(run: Run) -> list[float]:
    """Return for every line the overlap (IoU) of the best box found."""
    overlaps = []
    for pixels, truth in pages():
        (maps,) = run(x=pixels).values()
        found = list(boxes(maps[0, 0]))
        overlaps += [max((overlap(box, one) for one in found), default=0.0) for box in truth]
    return overlaps


@cache
def pages() -> list[tuple[NDArray[np.float32], list[Box]]]:
    """Return pages [1, 3, 736, 736], BGR, with the box of every line."""
    made = []
    for image, truth in rendered.pages(PAGES, rendered.reviews(), seed=1):
        pixels = (np.asarray(image)[:, :, ::-1] / 255 - MEAN) / STD
        made.append((pixels.transpose(2, 0, 1)[None].astype(np.float32), truth))
    return made


def boxes(probability: NDArray[Any]) -> Iterator[Box]:
    """Yield boxes around connected regions above 0.3, grown as it was taught to shrink."""
    from scipy.ndimage import find_objects, label

    regions, _ = label(probability > 0.3, structure=np.ones((3, 3)))
    for at, (rows, columns) in enumerate(find_objects(regions), 1):
        width, height = columns.stop - columns.start, rows.stop - rows.start
        inside = regions[rows, columns] == at
        if min(width, height) < 4 or probability[rows, columns][inside].mean() < 0.5:
            continue
        grow = width * height * 1.2 / (2 * (width + height))
        yield columns.start - grow, rows.start - grow, columns.stop + grow, rows.stop + grow


def overlap(one: Box, two: Box) -> float:
    """Return intersection over union."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return float(shared / (sum(areas) - shared))
