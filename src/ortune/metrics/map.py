"""Mean average precision of a detector, by COCO's definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ortune.core.errors import BadData, BadSettings
from ortune.core.metric import Metric
from ortune.core.plugins import bounds, stored, user_function
from ortune.core.session import Tensors
from ortune.core.wording import count
from ortune.scoring import average_precision, boxes
from ortune.scoring.average_precision import Boxes, Floats
from ortune.scoring.boxes import Format

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
        decode: ``pkg.module:fn`` in the place of these; importable where ortune runs.
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

    boxes: str = ""
    scores: str = ""
    classes: str = ""
    valid: str = ""
    decode: Annotated[str, stored.CODE] = ""
    layout: Format = "xyxy"
    iou: Annotated[float, bounds.SHARE] = 0.0
    nms: Annotated[float, bounds.SHARE] = 0.0
    least: float = 0.0
    frame: tuple[float, ...] = ()
    ids: bool = False

    def __post_init__(self) -> None:
        if self.decode and (self.boxes or self.scores or self.classes or self.valid):
            raise BadSettings(
                "map: decode stands in the place of boxes, scores, classes and valid",
                fix="give decode=pkg.module:function alone, or outputs by name",
            )
        if len(self.frame) not in (0, 2) or not all(self.frame):
            raise BadSettings(
                f"map: frame is {list(self.frame)}", fix="write frame=[width, height]"
            )

    @property
    def reads_inputs(self) -> bool:
        """Whether a function decodes: it is given the inputs too."""
        return bool(self.decode)

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> Sequence[float]:
        """Return what one picture contributes, see `average_precision.record`."""
        return self.record_with(expected, actual, label, {})

    def record_with(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors
    ) -> Sequence[float]:
        """Return what one picture contributes.

        Raises:
            BadData: Outputs or label are no boxes, or the decode function fails.
        """
        truth, size = boxes.labelled(label, self.ids)
        names = self._named(expected)
        for name in names:
            array = np.asarray(actual.get(name, np.nan))
            if array.dtype.kind in "fc" and not np.isfinite(array).all():
                return _BROKEN
        found = self._decoded(actual, inputs) if self.decode else self._read(actual, *names)
        if not all(np.isfinite(one).all() for one in (found.boxes, found.scores, found.classes)):
            return _BROKEN
        if self.least:
            found = boxes.chosen(found, found.scores >= self.least)
        if self.nms:
            found = average_precision.suppressed(found, self.nms)
        if self.frame and size:
            found = boxes.scaled(found, self.frame, size)
        return average_precision.record(found, truth, self._thresholds)

    def aggregate(self, records: Floats) -> float:
        """Return the average precision of all pictures together."""
        return average_precision.average_precision(records, len(self._thresholds))

    def each(self, records: Floats) -> Floats:
        """Return each picture's by itself; of one without labelled boxes 1 if nothing is found."""
        return np.array([self._alone(row) for row in records], np.float64)

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        """Return the outputs that are named; all where a function decodes."""
        return frozenset(self._named(outputs))

    @property
    def _thresholds(self) -> Floats:
        return average_precision.thresholds(self.iou)

    def _alone(self, row: Floats) -> float:
        if row[0] == 0:
            return float(np.isfinite(row).sum() == 1)
        return self.aggregate(row[None])

    def _named(self, outputs: Tensors) -> list[str]:
        if self.decode:
            return list(outputs)
        names = [self.boxes or "boxes", self.scores or "scores"]
        names += [self.classes] if self.classes else []
        names += [self.valid] if self.valid else []
        for name, field in zip(names, ("boxes", "scores", "classes", "valid"), strict=False):
            if name not in outputs:
                raise BadData(
                    f"map: the model has no output '{name}'; its outputs are {', '.join(outputs)}",
                    fix=f"name one: map({field}=NAME), or map(decode=pkg.module:function)",
                )
        return names

    def _read(self, outputs: Tensors, *names: str) -> Boxes:
        places, scores, *classes = (outputs[name] for name in names[: 3 if self.classes else 2])
        real = np.asarray(outputs[self.valid]).reshape(-1) if self.valid else None
        if real is not None and len(real) != 1:
            raise BadData(
                f"map: output '{self.valid}' has {count(len(real), 'number')}, not one",
                fix="score one picture a sample, or use map(decode=pkg.module:function)",
            )
        valid = None if real is None else int(real[0])
        kinds = classes[0] if classes else None
        return boxes.detected(places, scores, kinds, self.layout, valid=valid)

    def _decoded(self, outputs: Tensors, inputs: Tensors) -> Boxes:
        function: Callable[..., Any] = user_function.function(self.decode, *user_function.DECODE)
        try:
            places, scores, classes = function(dict(outputs), dict(inputs))
        except Exception as error:
            raise BadData(
                f"{self.decode} fails: {user_function.reason(error)}",
                fix="it gets (outputs, inputs) of one sample and returns boxes, scores, classes",
            ) from error
        return boxes.detected(places, scores, classes, self.layout, where=f"{self.decode}'s")
