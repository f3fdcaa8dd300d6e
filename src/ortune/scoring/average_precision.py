"""Average precision as COCO defines it: what a picture contributes, and the figure of many.

The definition is that of pycocotools' ``COCOeval`` (cocodataset/cocoapi, ``cocoeval.py``) for
boxes, all areas and at most 100 detections a picture and class, which it equals. A picture's
record is a row of numbers: how many classes have labelled boxes, (class, boxes) of each, then
(class, score, marks) of every detection. Of marks bit t says that the detection was matched at
threshold t, and bit 16 + t that it does not count there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST = 100
"""Detections of one class that count in a picture: those of the highest scores."""
THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
"""COCO's: 0.50 to 0.95 in steps of 0.05."""
_RECALLS: Floats = np.linspace(0.0, 1.0, 101)
_AREAS = (0.0, 1e10)
"""Of detections that count without a match, in pixels."""
_IGNORED = 16


@dataclass(frozen=True)
class Boxes:
    """Boxes of one picture.

    Attributes:
        boxes: Left, top, width, height, float64 [n, 4].
        classes: Whole numbers, [n].
        scores: Of detections, [n]; empty for labels.
        crowd: Labels that stand for many objects: they swallow detections and none is missed.
    """

    boxes: Floats
    classes: Floats
    scores: Floats
    crowd: NDArray[np.bool_]


def thresholds(iou: float) -> Floats:
    """Return the overlaps at which a detection is right: COCO's ten for 0, else the one."""
    if not iou:
        return THRESHOLDS
    near = THRESHOLDS[np.abs(THRESHOLDS - iou) < 1e-9]
    return near if len(near) else np.array([iou])


def overlaps(found: Floats, truth: Floats, crowd: NDArray[np.bool_]) -> Floats:
    """Return intersection over union of boxes [n, 4] and [m, 4], shape [n, m].

    Boxes are left, top, width, height. Of a crowd it is the intersection over the found box.
    """
    end, far = found[:, :2] + found[:, 2:], truth[:, :2] + truth[:, 2:]
    sides = np.minimum(end[:, None], far[None]) - np.maximum(
        found[:, None, :2], truth[None, :, :2]
    )
    shared = np.where((sides > 0).all(-1), sides[..., 0] * sides[..., 1], 0.0)
    own, other = found[:, 2] * found[:, 3], truth[:, 2] * truth[:, 3]
    union = np.where(crowd[None], own[:, None], own[:, None] + other[None] - shared)
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0))


def suppressed(found: Boxes, most: float) -> Boxes:
    """Keep, of boxes of one class that overlap by more than `most`, those of the highest score.

    At most `MOST` of a class are kept: no more count.
    """
    kept: list[int] = []
    for one in np.unique(found.classes):
        left = np.flatnonzero(found.classes == one)
        left = left[np.argsort(-found.scores[left], kind="stable")]
        taken = 0
        while len(left) and taken < MOST:
            kept.append(int(left[0]))
            taken += 1
            rest = left[1:]
            shared = overlaps(
                found.boxes[left[:1]], found.boxes[rest], np.zeros(len(rest), np.bool_)
            )
            left = rest[shared[0] <= most]
    rows = np.array(sorted(kept), np.int64)
    return Boxes(found.boxes[rows], found.classes[rows], found.scores[rows], found.crowd[rows])


def record(found: Boxes, truth: Boxes, at: Floats) -> list[float]:
    """Return the row of one picture.

    Args:
        at: The overlaps at which a detection is right, at most 16.
    """
    labelled, counts = np.unique(truth.classes[~truth.crowd], return_counts=True)
    row = [float(len(labelled)), *np.stack([labelled, counts], 1).reshape(-1).tolist()]
    for one in np.unique(found.classes):
        here = np.flatnonzero(found.classes == one)
        here = here[np.argsort(-found.scores[here], kind="stable")][:MOST]
        there = np.flatnonzero(truth.classes == one)
        marks = _matched(found.boxes[here], truth.boxes[there], truth.crowd[there], at)
        for score, mark in zip(found.scores[here].tolist(), marks.tolist(), strict=True):
            row += [float(one), score, float(mark)]
    return row


def average_precision(records: Floats, count: int) -> float:
    """Return the mean over classes and thresholds of precision at 101 recalls.

    Args:
        records: Rows of `record`, filled up with NaN behind their ends.
        count: Number of thresholds.

    Returns:
        NaN where a row is broken (it begins with NaN) or no picture has a labelled box.
    """
    if not len(records) or np.isnan(records[:, 0]).any():
        return float("nan")
    labels, found = _unpacked(records)
    classes, place = np.unique(labels[:, 0], return_inverse=True)
    boxes = np.bincount(place.reshape(-1), labels[:, 1], len(classes))
    order = np.lexsort((-found[:, 1], found[:, 0]))  # of equal scores the earlier picture's first
    found = found[order]
    marks = found[:, 2].astype(np.int64)
    starts = np.searchsorted(found[:, 0], classes, "left")
    ends = np.searchsorted(found[:, 0], classes, "right")
    parts = zip(starts, ends, boxes, strict=True)
    return float(
        np.mean([_precision(marks[start:end], int(total), count) for start, end, total in parts])
        if len(classes)
        else np.nan
    )


def _matched(
    found: Floats, truth: Floats, crowd: NDArray[np.bool_], at: Floats
) -> NDArray[np.int64]:
    """Match detections of one class, best score first, and return their marks [n].

    Each takes the free labelled box that it overlaps most, of equal ones the last; where there is
    none, a crowd, which stays free. What matches a crowd, or nothing and is of no counted area,
    does not count.
    """
    shared = overlaps(found, truth, crowd)
    least = np.minimum(at, 1 - 1e-10)[:, None]
    free = np.ones((len(at), len(truth)), np.bool_)
    bits = 1 << np.arange(len(at))
    area = found[:, 2] * found[:, 3]
    odd = (area < _AREAS[0]) | (area > _AREAS[1])
    marks = np.zeros(len(found), np.int64)
    rows = np.arange(len(at))
    for n in range(len(found)):
        if not len(truth):
            hit = none = np.zeros(len(at), np.bool_)
        else:
            fits = np.where(shared[n][None] >= least, shared[n][None], -1.0)
            plain, best = _last_best(np.where(free & ~crowd, fits, -1.0))
            many, _ = _last_best(np.where(crowd, fits, -1.0))
            free[rows[plain], best[plain]] = False
            hit, none = plain | many, many & ~plain
        ignored = none | (~hit & odd[n])
        marks[n] = (bits * hit).sum() + ((bits << _IGNORED) * ignored).sum()
    return marks


def _last_best(values: Floats) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return for each row [t, m] whether any value is not negative, and the last largest."""
    best = values.shape[1] - 1 - np.argmax(values[:, ::-1], axis=1)
    return values[np.arange(len(values)), best] >= 0, best


def _unpacked(records: Floats) -> tuple[Floats, Floats]:
    """Return (class, boxes) [n, 2] and (class, score, marks) [m, 3] of all rows in their order."""
    inside = ~np.isnan(records)
    lengths = inside.sum(1)
    column = np.arange(records.shape[1])[None]
    end = 1 + 2 * records[:, :1]
    labels = records[(column >= 1) & (column < end)].reshape(-1, 2)
    return labels, records[(column >= end) & (column < lengths[:, None])].reshape(-1, 3)


def _precision(marks: NDArray[np.int64], total: int, count: int) -> float:
    """Return the mean over thresholds and recalls of one class that has `total` boxes.

    The precision at a recall is the best one at it or beyond, and such a one is at a hit: only
    these are looked at.
    """
    needed, found = _needed(total), 0.0
    some_ignored = bool((marks >> _IGNORED).any())
    for bit in range(count):
        ignored = marks >> (bit + _IGNORED) & 1
        hits = np.flatnonzero(marks >> bit & 1 & ~ignored)
        counted = np.cumsum(1 - ignored)[hits] if some_ignored else hits + 1
        precision = np.arange(1.0, len(hits) + 1) / (counted + np.spacing(1))
        best = np.maximum.accumulate(precision[::-1])[::-1]
        found += float(best[needed[: np.searchsorted(needed, len(hits))]].sum())
    return found / (count * len(_RECALLS))


@lru_cache(4096)
def _needed(total: int) -> NDArray[np.int64]:
    """Return which hit, from 0, first reaches each of the 101 recalls of `total` boxes."""
    return np.searchsorted(np.arange(1, total + 1) / total, _RECALLS, "left")
