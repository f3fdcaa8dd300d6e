"""Mean average precision of a detector, by COCO's definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from ortune.core.errors import BadData, BadSettings
from ortune.core.metric import Metric
from ortune.core.plugins import bounds, stored, user_function
from ortune.core.session import Tensors
from ortune.core.wording import format_count
from ortune.metrics.common import detection

_BROKEN = [float("nan")]


@dataclass(frozen=True)
class Map(Metric):
    """Average precision over classes, 101 recalls and overlaps (IoU) of 0.50 to 0.95, as COCO's.

    Boxes come from outputs that are named, or from a function of yours:
    ``decode(outputs, inputs)`` of one sample returns boxes [n, 4], scores [n] and classes [n].
    Labels are rows [left, top, right, bottom, class] of each picture, or a COCO file.

    Attributes:
        boxes: Output of boxes [n, 4]; empty takes the one called boxes.
        scores: Output of scores [n], or [n, classes] where no output has the classes.
        classes: Output of classes [n]; empty takes each box's best.
        valid: Output that says how many of the boxes are real; empty takes all.
        decode: ``FILE.py:NAME`` in the place of these; importable where ortune runs.
        layout: Of the boxes: xyxy (corners), xywh or cxcywh (centre, width, height).
        iou: The one overlap at which a detection is right; 0 takes COCO's ten.
        nms: Overlap above which the weaker of two boxes of a class is dropped; 0 where the model
            does that.
        least: Detections of a lower score are dropped.
        frame: Width and height of the picture that found boxes are in, such as [640, 640], or
            [1, 1] for shares; labels with a picture's own size are met there.
        ids: Found classes are the category ids of a COCO file, not their places in its list.
    """

    needs_labels: ClassVar[bool] = True
    ragged: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    boxes: str = ""
    scores: str = ""
    classes: str = ""
    valid: str = ""
    decode: Annotated[str, stored.CODE] = ""
    layout: detection.Format = "xyxy"
    iou: Annotated[float, bounds.SHARE] = 0.0
    nms: Annotated[float, bounds.SHARE] = 0.0
    least: float = 0.0
    frame: tuple[float, ...] = ()
    ids: bool = False

    def __post_init__(self) -> None:
        if self.decode and (self.boxes or self.scores or self.classes or self.valid):
            raise BadSettings(
                "map: decode stands in the place of boxes, scores, classes and valid",
                fix="give decode=FILE.py:NAME alone, or outputs by name",
            )
        if len(self.frame) not in (0, 2) or not all(self.frame):
            raise BadSettings(
                f"map: frame is {list(self.frame)}", fix="write frame=[width, height]"
            )

    @property
    def reads_inputs(self) -> bool:
        return bool(self.decode)

    def record_with(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors
    ) -> Sequence[float]:
        """Return what one picture contributes, see `detection.record`.

        Raises:
            BadData: Outputs or label are no boxes, or the decode function fails.
            OrtuneError: pycocotools is not installed.
        """
        truth, size = detection.read_labels(label, self.ids)
        names = self._output_names(expected)
        for name in names:
            array = np.asarray(actual.get(name, np.nan))
            if array.dtype.kind in "fc" and not np.isfinite(array).all():
                return _BROKEN
        if self.decode:
            function = user_function.import_function(self.decode, *user_function.DECODE)
            try:
                places, scores, classes = function(dict(actual), dict(inputs))
            except Exception as error:
                raise BadData(
                    f"{self.decode} fails: {user_function.describe_error(error)}",
                    fix="it gets (outputs, inputs) of one sample and returns boxes, scores, "
                    "classes",
                ) from error
            where = f"{self.decode}'s"
            detections = detection.read_detections(
                places, scores, classes, self.layout, where=where
            )
        else:
            detections = self._read_boxes(actual, *names)
        if not all(
            np.isfinite(values).all()
            for values in (detections.boxes, detections.scores, detections.classes)
        ):
            return _BROKEN
        if self.least:
            detections = detections.select_rows(detections.scores >= self.least)
        if self.nms:
            detections = detection.suppress_overlaps(detections, self.nms)
        if self.frame and size:
            by = np.array([*size, *size]) / np.array([*self.frame, *self.frame])
            detections = replace(detections, boxes=detections.boxes * by)
        return detection.match_detections(detections, truth, detection.list_thresholds(self.iou))

    def aggregate(self, records: detection.Floats) -> float:
        """Return the mean over classes and thresholds of precision at 101 recalls.

        It is `COCOeval.accumulate` at a quarter of its time: a bootstrap asks a thousand times.
        NaN where a row is broken (it begins with NaN) or no picture has a labelled box.
        """
        if not len(records) or np.isnan(records[:, 0]).any():
            return float("nan")
        column, end = np.arange(records.shape[1])[None], 1 + 2 * records[:, :1]
        labels = records[(column >= 1) & (column < end)].reshape(-1, 2)
        boxes = records[(column >= end) & ~np.isnan(records)].reshape(-1, 3)
        classes, place = np.unique(labels[:, 0], return_inverse=True)
        if not len(classes):
            return float("nan")
        totals = np.bincount(place.reshape(-1), labels[:, 1], len(classes)).astype(int)
        # Of equal scores the earlier picture's comes first.
        boxes = boxes[np.lexsort((-boxes[:, 1], boxes[:, 0]))]
        marks, thresholds = boxes[:, 2].astype(np.int64), len(detection.list_thresholds(self.iou))
        ends = (np.searchsorted(boxes[:, 0], classes, side) for side in ("left", "right"))
        parts = zip(*ends, totals.tolist(), strict=True)
        precisions = (
            detection.compute_class_precision(marks[a:b], n, thresholds) for a, b, n in parts
        )
        return float(np.mean(list(precisions)))

    def each(self, records: detection.Floats) -> detection.Floats:
        """Return each picture's by itself; of one without labelled boxes 1 if nothing is found."""
        scores = (
            self.aggregate(row[None]) if row[0] != 0 else float(np.isfinite(row).sum() == 1)
            for row in records
        )
        return np.fromiter(scores, np.float64, len(records))

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        """Return the outputs that are named; all where a function decodes."""
        return frozenset(self._output_names(outputs))

    def _output_names(self, outputs: Tensors) -> list[str]:
        if self.decode:
            return list(outputs)
        names = {"boxes": self.boxes or "boxes", "scores": self.scores or "scores"}
        names |= {"classes": self.classes} if self.classes else {}
        names |= {"valid": self.valid} if self.valid else {}
        for field, name in names.items():
            if name not in outputs:
                raise BadData(
                    f"map: the model has no output '{name}'; its outputs are {', '.join(outputs)}",
                    fix=f"name one: map({field}=NAME), or map(decode=FILE.py:NAME)",
                )
        return list(names.values())

    def _read_boxes(self, outputs: Tensors, *names: str) -> detection.Boxes:
        arrays = [np.asarray(outputs[name]) for name in names]
        valid = None
        if self.valid:
            real = arrays.pop().reshape(-1)
            if len(real) != 1:
                raise BadData(
                    f"map: output '{self.valid}' has {format_count(len(real), 'number')}, not one",
                    fix="score one picture a sample, or use map(decode=FILE.py:NAME)",
                )
            valid = int(real[0])
        places, scores, kinds = (*arrays, None)[:3]
        return detection.read_detections(places, scores, kinds, self.layout, valid=valid)
