"""Boxes of pictures, matched by pycocotools, and average precision as COCO defines it.

A picture's record is a row of numbers: how many classes have labelled boxes, (class, boxes) of
each, then (class, score, marks) of every detection. Of marks bit t says that the detection was
matched at threshold t, and bit 16 + t that it does not count there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, OrtuneError
from ortune.core.wording import format_count

Floats = NDArray[np.float64]
Format: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
"""Corners; left, top, width, height; centre, width, height."""
MAX_DETECTIONS = 100
"""Detections of one class that count in a picture: those of the highest scores."""
_THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
_RECALLS: Floats = np.linspace(0.0, 1.0, 101)
_AREAS = [0.0, 1e10]
_IGNORED = 16


@dataclass(frozen=True)
class Boxes:
    """Boxes of one picture."""

    boxes: Floats  # left, top, width, height, float64 [n, 4]
    classes: Floats  # whole numbers, [n]
    scores: Floats  # of detections, [n]; zeros for labels
    # Labels that stand for many objects: they swallow detections and none is missed.
    crowd: NDArray[np.bool_]

    def select_rows(self, rows: NDArray[Any]) -> Boxes:
        """Return the boxes of some rows: a mask, or places."""
        return Boxes(self.boxes[rows], self.classes[rows], self.scores[rows], self.crowd[rows])


def read_detections(
    boxes: Any,
    scores: Any,
    classes: Any,
    layout: Format,
    *,
    valid: int | None = None,
    where: str = "outputs",
) -> Boxes:
    """Return the detections of one picture; those of a class below 0 are padding.

    Args:
        boxes: [n, 4], or [1, n, 4].
        scores: One a box; or one a box and class, [n, classes] or [classes, n], of which the
            best counts, where `classes` is None.
        layout: Of the boxes.
        valid: How many of the boxes are real, the first ones; None takes all.
        where: What they are from, for messages.

    Raises:
        BadData: They do not fit together.
    """
    places = _of_picture(boxes, "boxes", where, 2)
    if places.shape[-1] != 4 and places.size:
        raise BadData(
            f"the boxes of the {where} have the shape {list(np.shape(boxes))}, expected [n, 4]",
            fix="take them apart in a function: map(decode=FILE.py:NAME)",
        )
    places = places.reshape(-1, 4)
    best = _of_picture(scores, "scores", where, 2 if classes is None else 1)
    if classes is not None:
        best, kinds = best.reshape(-1), _of_picture(classes, "classes", where, 1).reshape(-1)
    elif best.ndim == 1 or not best.size:
        best, kinds = best if best.ndim == 1 else np.zeros(len(best)), np.zeros(len(best))
    else:
        by_box = best if len(best) == len(places) or best.shape[1] != len(places) else best.T
        best, kinds = by_box.max(1), by_box.argmax(1).astype(np.float64)
    for name, values in (("scores", best), ("classes", kinds)):
        if len(values) != len(places):
            raise BadData(
                f"the {where} have {format_count(len(places), 'box', 'boxes')} and {len(values)} "
                f"{name}",
                fix="give one score and one class a box, or map(decode=FILE.py:NAME)",
            )
    crowd = np.zeros(len(kinds), np.bool_)
    real = (kinds >= 0) & (np.arange(len(kinds)) < (len(kinds) if valid is None else valid))
    return Boxes(_to_xywh(places, layout), kinds, best, crowd).select_rows(real)


def read_labels(label: Any, ids: bool = False) -> tuple[Boxes, tuple[float, float] | None]:
    """Return the labelled boxes of one picture, and its width and height where they are known.

    Args:
        label: Rows [left, top, right, bottom, class] or [..., class, crowd]; or what is read of
            a COCO file: ``boxes`` (left, top, width, height), ``classes``, ``ids``, ``crowd`` and
            ``size``. A row whose class is below 0 or NaN is padding.
        ids: Classes are the file's category ids, not their places among them.

    Raises:
        BadData: It is neither.
    """
    if isinstance(label, np.ndarray) and label.dtype == object and label.size == 1:
        label = label.item()
    try:
        if isinstance(label, Mapping):
            places = np.asarray(label["boxes"], np.float64).reshape(-1, 4)
            classes = np.asarray(label["ids" if ids else "classes"], np.float64).reshape(-1)
            many = (
                np.asarray(label.get("crowd", np.zeros(len(classes))), np.float64).reshape(-1) > 0
            )
            size = label.get("size")
            if not len(places) == len(classes) == len(many):
                raise ValueError
            whole = None if size is None else (float(size[0]), float(size[1]))
            return Boxes(places, classes, np.zeros(len(places)), many), whole
        rows = np.asarray(label, np.float64)
        rows = rows.reshape(0, 5) if not rows.size else rows[None] if rows.ndim == 1 else rows
        rows = rows[0] if rows.ndim == 3 and len(rows) == 1 else rows
        if rows.ndim != 2 or rows.shape[1] not in (5, 6):
            raise ValueError
        rows = rows[rows[:, 4] >= 0]
        if not np.isfinite(rows).all():
            raise ValueError
    except (KeyError, TypeError, ValueError, IndexError):
        raise BadData(
            f"the label {label!r:.60} is no list of boxes",
            fix="give one row a box: [left, top, right, bottom, class] or [..., class, crowd]; "
            "or a COCO .json",
        ) from None
    crowd = rows[:, 5] > 0 if rows.shape[1] == 6 else np.zeros(len(rows), np.bool_)
    return Boxes(_to_xywh(rows[:, :4], "xyxy"), rows[:, 4], np.zeros(len(rows)), crowd), None


def suppress_overlaps(detections: Boxes, most: float, limit: int = MAX_DETECTIONS) -> Boxes:
    """Keep boxes of highest score, `limit` at most, that overlap none by more than `most`."""
    kept: list[int] = []
    for kind in np.unique(detections.classes):
        rows = np.flatnonzero(detections.classes == kind)
        rows = rows[np.argsort(-detections.scores[rows], kind="stable")]
        for _ in range(limit):
            if not len(rows):
                break
            kept.append(int(rows[0]))
            first, weaker = detections.boxes[rows[:1]], detections.boxes[rows[1:]]
            rows = rows[1:][compute_overlaps(first, weaker)[0] <= most]
    return detections.select_rows(np.array(sorted(kept), np.int64))


def compute_overlaps(first: Floats, second: Floats) -> Floats:
    """Return the overlap (IoU) of boxes [n, 4] and [m, 4] (left, top, width, height), [n, m]."""
    ends = [
        np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1) for boxes in (first, second)
    ]
    low = np.maximum(ends[0][:, None, :2], ends[1][None, :, :2])
    high = np.minimum(ends[0][:, None, 2:], ends[1][None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(boxes[:, 2:], 0, None).prod(axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - shared
    return np.asarray(shared / np.where(union > 0, union, 1.0), np.float64)


def list_thresholds(iou: float) -> Floats:
    """Return the overlaps at which a detection is right: COCO's ten for 0, else the one."""
    if not iou:
        return _THRESHOLDS
    near = _THRESHOLDS[np.abs(_THRESHOLDS - iou) < 1e-9]
    return near if len(near) else np.array([iou])


def match_detections(detections: Boxes, truth: Boxes, at: Floats) -> list[float]:
    """Return the row of one picture: its detections as `COCOeval` of pycocotools matches them.

    Args:
        at: The overlaps at which a detection is right, at most 16.

    Raises:
        OrtuneError: pycocotools is not installed.
    """
    try:
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise OrtuneError(
            f"map needs pycocotools: {error}", fix="pip install pycocotools"
        ) from error
    judge = COCOeval(iouType="bbox")
    judge.params.iouThrs, judge.params.maxDets = at, [MAX_DETECTIONS]
    for boxes, by_class in ((truth, judge._gts), (detections, judge._dts)):
        columns = (boxes.boxes, boxes.classes, boxes.scores, boxes.crowd)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for number, (box, kind, score, crowd) in enumerate(rows, 1):
            by_class[0, kind].append(
                {
                    "id": number,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "score": score,
                    "iscrowd": crowd,
                    "ignore": crowd,
                }
            )
    labelled, counts = np.unique(truth.classes[~truth.crowd], return_counts=True)
    row = [float(len(labelled)), *np.stack([labelled, counts], 1).reshape(-1).tolist()]
    bits = (1 << np.arange(len(at)))[:, None]
    for kind in np.unique(detections.classes).tolist():
        judge.ious[0, kind] = judge.computeIoU(0, kind)
        match = judge.evaluateImg(0, kind, _AREAS, MAX_DETECTIONS)
        hits, ignored = match["dtMatches"] > 0, match["dtIgnore"]
        marks = (bits * hits).sum(0) + ((bits << _IGNORED) * ignored).sum(0)
        for score, mark in zip(match["dtScores"], marks.tolist(), strict=True):
            row += [kind, score, float(mark)]
    return row


def compute_class_precision(marks: NDArray[np.int64], total: int, thresholds: int) -> float:
    """Return the mean over thresholds and recalls of one class that has `total` boxes.

    The precision at a recall is the best one at it or beyond, and such a one is at a hit: only
    these are looked at.
    """
    needed, area = _hits_needed(total), 0.0
    any_ignored = bool((marks >> _IGNORED).any())
    for bit in range(thresholds):
        ignored = marks >> (bit + _IGNORED) & 1
        hits = np.flatnonzero(marks >> bit & 1 & ~ignored)
        counted = np.cumsum(1 - ignored)[hits] if any_ignored else hits + 1
        precision = np.arange(1.0, len(hits) + 1) / (counted + np.spacing(1))
        best = np.maximum.accumulate(precision[::-1])[::-1]
        area += float(best[needed[: np.searchsorted(needed, len(hits))]].sum())
    return area / (thresholds * len(_RECALLS))


@lru_cache(4096)
def _hits_needed(total: int) -> NDArray[np.int64]:
    """Return which hit, from 0, first reaches each of the 101 recalls of `total` boxes."""
    return np.searchsorted(np.arange(1, total + 1) / total, _RECALLS, "left")


def _of_picture(values: Any, name: str, where: str, rank: int) -> Floats:
    """Return the values of one picture: without leading dimensions of 1 beyond `rank`."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise BadData(f"the {name} of the {where} are no numbers", fix="give arrays") from None
    while array.ndim > rank:
        if array.shape[0] != 1 and array.size:
            raise BadData(
                f"the {name} of the {where} have the shape {list(np.shape(values))}: more than "
                "one picture",
                fix="score one picture a sample: export the model with a batch of 1 or any",
            )
        array = array.reshape(array.shape[1:]) if array.size else array.reshape((0,) * rank)
    return array


def _to_xywh(boxes: Floats, layout: Format) -> Floats:
    """Return left, top, width, height."""
    if layout == "xywh":
        return boxes
    if layout == "cxcywh":
        return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, 2:]], 1)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
