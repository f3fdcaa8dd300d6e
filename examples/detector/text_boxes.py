"""What PP-OCR's text detector says, as boxes: regions of its map of probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import find_objects, label

INK, SURE, SMALL = 0.3, 0.5, 3
"""A pixel is text above INK; a region is a line if its mean is above SURE, and SMALL high."""
GROWN = 0.7
"""The network was taught shrunken regions: by their area over their circumference, times this."""


def decode(
    outputs: Mapping[str, NDArray[Any]], inputs: Mapping[str, NDArray[Any]]
) -> tuple[list[list[float]], list[float], list[int]]:
    """Return boxes (left, top, right, bottom) in pixels of the page, scores, and class 0 for all.

    Args:
        outputs: One map [1, 1, height, width] of probabilities.
        inputs: The page [1, 3, height, width], whose size bounds the boxes.
    """
    (chances,) = outputs.values()
    (page,) = inputs.values()
    high, wide = page.shape[2:]
    chances = chances[0, 0]
    regions, _ = label(chances > INK, structure=np.ones((3, 3)))
    boxes, scores = [], []
    for at, (rows, columns) in enumerate(find_objects(regions), 1):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        score = float(chances[rows, columns][regions[rows, columns] == at].mean())
        if min(height, width) < SMALL or score < SURE:
            continue
        grow = GROWN * height * width / (2 * (height + width))
        boxes.append(
            [
                max(0.0, columns.start - grow),
                max(0.0, rows.start - grow),
                min(float(wide), columns.stop + grow),
                min(float(high), rows.stop + grow),
            ]
        )
        scores.append(score)
    return boxes, scores, [0] * len(boxes)
