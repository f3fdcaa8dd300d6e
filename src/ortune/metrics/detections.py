"""How many of the original's detections a detector keeps, as they are after decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.plugins import bounds
from ortune.core.session import Tensors
from ortune.metrics.common import detection, outputs
from ortune.metrics.common.fidelity import Fidelity

_NEAR = 0.8
"""Share of the least score from which a detection of one model answers one of the other: a score
that crosses the limit by a hair is none that was lost."""
_LISTED = 6  # columns of a head that lists boxes, scores and classes
_COVERS = 0.5  # overlap above which a box of the same class is the same object
_MOST = 300  # boxes of the highest scores that are looked at in a picture


@dataclass(frozen=True)
class Detections(Fidelity):
    """The share of both models' detections in a sample that the other has too.

    A detection is a box with a score of `least` or more that no stronger one of its class covers.
    The other model has it where a box of its, covered or not, is of the same class and overlaps it
    by `iou`: which box of a cluster is the strongest is often a matter of the last digit. Labels
    are not needed. A sample in which neither model detects anything scores 1.

    Attributes:
        head: Output of boxes and scores together, [n, 4 + classes] or transposed; or
            [n, 5 + classes] with the chance of an object at place 4; or [n, 6], corners first,
            with the score and the number of the class.
        boxes: Output of boxes [n, 4], where they have one of their own.
        scores: Output of scores [n] or [n, classes]: from 0 to 1, or logits.
        classes: Output of classes [n]; empty takes each box's best.
        layout: Of the boxes: xyxy (corners), xywh or cxcywh (centre, width, height).
        least: Score of a detection.
        iou: Overlap of boxes that are the same.
        background: Column of scores that says that nothing is there; -1 where there is none.
    """

    follows_db: ClassVar[float] = 3.0
    """Dead and swapped groups have 0 or less; what matters of the others is detected."""
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    head: str = ""
    boxes: str = ""
    scores: str = ""
    classes: str = ""
    layout: detection.Format = "cxcywh"
    least: Annotated[float, bounds.SHARE] = 0.25
    iou: Annotated[float, bounds.SHARE] = 0.75
    background: Annotated[int, bounds.Bounds(low=-1)] = -1

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> tuple[float, float]:
        """Return the share that is kept, and how many detections the original has.

        Raises:
            BadData: An output is missing, or boxes and scores do not fit together.
        """
        names = [name for name in (self.head, self.boxes, self.scores, self.classes) if name]
        for name in names:
            outputs.select_outputs(expected, name)
        original = self._decode(expected)
        certain = original.select_rows(original.scores >= self.least)
        count = float(len(detection.suppress_overlaps(certain, _COVERS, _MOST).classes))
        if outputs.has_broken_values(expected, actual, names):
            return float("nan"), count
        if not all(outputs.has_same_shape(expected, actual, name) for name in names):
            return 0.0, count
        candidate = self._decode(actual)
        had, total = 0, 0
        for detections, answers in ((original, candidate), (candidate, original)):
            certain = detections.select_rows(detections.scores >= self.least)
            certain = detection.suppress_overlaps(certain, _COVERS, _MOST)
            same = (certain.classes[:, None] == answers.classes[None]) & (
                detection.compute_overlaps(certain.boxes, answers.boxes) >= self.iou
            )
            had, total = had + int(same.any(axis=1).sum()), total + len(certain.classes)
        return (had / total if total else 1.0), count

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        return frozenset(filter(None, (self.head, self.boxes, self.scores, self.classes)))

    def _decode(self, tensors: Tensors) -> detection.Boxes:
        """Return the boxes that have nearly the least score, the strongest first."""
        classes: NDArray[Any] | None = tensors[self.classes] if self.classes else None
        if self.head:
            head = tensors[self.head]
            rows = np.asarray(head, np.float64).reshape(head.shape[-2], head.shape[-1])
            rows = rows.T if len(rows) < rows.shape[1] else rows  # a row a box, which are more
            boxes, scores = rows[:, :4], rows[:, 4:]
            if rows.shape[1] == _LISTED and self.layout == "xyxy":
                scores, classes = rows[:, 4], rows[:, 5].round()
            elif 5 < head.shape[-1] < head.shape[-2]:
                scores = scores[:, :1] * scores[:, 1:]
        else:
            boxes, scores = tensors[self.boxes], np.asarray(tensors[self.scores], np.float64)
            if not ((scores >= 0) & (scores <= 1)).all():  # logits, of one column the logistic's
                single = scores.shape[-1] == 1
                scores = 1 / (1 + np.exp(-scores)) if single else outputs.compute_softmax(scores)
        if self.background >= 0:
            scores = np.delete(scores, self.background, axis=-1)
        detections = detection.read_detections(boxes, scores, classes, self.layout)
        likely = np.flatnonzero(detections.scores >= _NEAR * self.least)
        strongest = likely[np.argsort(-detections.scores[likely], kind="stable")[:_MOST]]
        return detections.select_rows(strongest)
