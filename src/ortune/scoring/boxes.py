"""Boxes as models, decode functions and labels give them, brought to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.session import Tensors
from ortune.core.wording import count
from ortune.scoring.average_precision import Boxes, Floats

Format: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
"""Corners; left, top, width, height; centre, width, height."""
_LABEL = "one row a box: [left, top, right, bottom, class] or [..., class, crowd]"


def detected(
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
        classes: One a box.
        layout: Of the boxes.
        valid: How many of the boxes are real, the first ones; None takes all.
        where: What they are from, for messages.

    Raises:
        BadData: They do not fit together.
    """
    places = _picture(boxes, "boxes", where, 2)
    if places.shape[-1] != 4 and places.size:
        raise BadData(
            f"the boxes of the {where} have the shape {list(np.shape(boxes))}, expected [n, 4]",
            fix="take them apart in a function: map(decode=pkg.module:function)",
        )
    places = places.reshape(-1, 4)
    if classes is None:
        best, kinds = _best(_picture(scores, "scores", where, 2), len(places), where)
    else:
        best, kinds = (
            _picture(given, name, where, 1).reshape(-1)
            for given, name in ((scores, "scores"), (classes, "classes"))
        )
    for name, given in (("scores", best), ("classes", kinds)):
        if len(given) != len(places):
            raise BadData(
                f"the {where} have {count(len(places), 'box', 'boxes')} and {len(given)} {name}",
                fix="give one score and one class a box, or map(decode=pkg.module:function)",
            )
    real = (kinds >= 0) & (np.arange(len(kinds)) < (len(kinds) if valid is None else valid))
    crowd = np.zeros(int(real.sum()), np.bool_)
    return Boxes(_cornered(places[real], layout), kinds[real], best[real], crowd)


def labelled(label: Any, ids: bool = False) -> tuple[Boxes, tuple[float, float] | None]:
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
    if isinstance(label, Mapping):
        return _of_file(label, ids)
    try:
        rows = np.asarray(label, np.float64)
    except (TypeError, ValueError):
        raise _no_label(label) from None
    if rows.size == 0:
        rows = rows.reshape(0, 5)
    elif rows.ndim == 1:
        rows = rows[None]
    elif rows.ndim == 3 and len(rows) == 1:
        rows = rows[0]
    if rows.ndim != 2 or rows.shape[1] not in (5, 6):
        raise _no_label(label)
    rows = rows[rows[:, 4] >= 0]
    if not np.isfinite(rows).all():
        raise _no_label(label)
    crowd = rows[:, 5] > 0 if rows.shape[1] == 6 else np.zeros(len(rows), np.bool_)
    return Boxes(_cornered(rows[:, :4], "xyxy"), rows[:, 4], np.zeros(0), crowd), None


def scaled(found: Boxes, frame: Sequence[float], size: Sequence[float]) -> Boxes:
    """Bring boxes in a frame of some width and height to a picture's own."""
    by = np.array([*size, *size], np.float64) / np.array([*frame, *frame], np.float64)
    return Boxes(found.boxes * by, found.classes, found.scores, found.crowd)


def chosen(found: Boxes, rows: NDArray[Any]) -> Boxes:
    """Return some of the detections."""
    return Boxes(found.boxes[rows], found.classes[rows], found.scores[rows], found.crowd[rows])


def output(tensors: Tensors, name: str) -> NDArray[Any]:
    """Return an output.

    Raises:
        BadData: There is none of that name.
    """
    if name not in tensors:
        raise BadData(f"the model has no output '{name}'", fix=f"use one of: {', '.join(tensors)}")
    return np.asarray(tensors[name])


def _of_file(label: Mapping[str, Any], ids: bool) -> tuple[Boxes, tuple[float, float] | None]:
    try:
        places = np.asarray(label["boxes"], np.float64).reshape(-1, 4)
        classes = np.asarray(label["ids" if ids else "classes"], np.float64).reshape(-1)
        crowd = np.asarray(label.get("crowd", np.zeros(len(classes))), np.float64).reshape(-1) > 0
        size = label.get("size")
        whole = None if size is None else (float(size[0]), float(size[1]))
    except (KeyError, TypeError, ValueError, IndexError):
        raise _no_label(label) from None
    if not len(places) == len(classes) == len(crowd):
        raise _no_label(label)
    return Boxes(places, classes, np.zeros(0), crowd), whole


def _no_label(label: Any) -> BadData:
    return BadData(
        f"the label {label!r:.60} is no list of boxes", fix=f"give {_LABEL}; or a COCO .json"
    )


def _picture(given: Any, name: str, where: str, rank: int) -> Floats:
    """Return the values of one picture: without leading dimensions of 1 beyond `rank`.

    Raises:
        BadData: There are several pictures, or they are no numbers.
    """
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise BadData(f"the {name} of the {where} are no numbers", fix="give arrays") from None
    while found.ndim > rank:
        if found.shape[0] != 1 and found.size:
            raise BadData(
                f"the {name} of the {where} have the shape {list(np.shape(given))}: more than "
                "one picture",
                fix="score one picture a sample: export the model with a batch of 1 or any",
            )
        found = found.reshape(found.shape[1:]) if found.size else found.reshape((0,) * rank)
    return found


def _best(scores: Floats, boxes: int, where: str) -> tuple[Floats, Floats]:
    """Return the best score of each box and its class."""
    if scores.ndim == 1:
        return scores, np.zeros(len(scores))
    if scores.shape[0] != boxes and scores.shape[1] == boxes:
        scores = scores.T
    if not scores.size:
        return np.zeros(len(scores)), np.zeros(len(scores))
    return scores.max(1), scores.argmax(1).astype(np.float64)


def _cornered(boxes: Floats, layout: Format) -> Floats:
    """Return left, top, width, height."""
    if layout == "xywh":
        return boxes
    if layout == "cxcywh":
        return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, 2:]], 1)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
