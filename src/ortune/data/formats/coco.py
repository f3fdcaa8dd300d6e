"""Labelled boxes from a COCO file of annotations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ortune.core import regular_file
from ortune.core.errors import BadData
from ortune.data import arrays, sizes

_GROWTH = 32
"""Bytes in memory that one of the file becomes at most."""


@dataclass(frozen=True)
class Annotations:
    """Labels of pictures.

    Attributes:
        labels: By the picture's file name, in the order of these names.
    """

    path: Path
    labels: Mapping[str, Mapping[str, Any]]

    def find_label(self, where: str) -> Mapping[str, Any]:
        """Return the label of a sample that was read from a file.

        Args:
            where: The sample's file, as a folder of pictures names it; or in a folder of .npz,
                where the suffix does not count.

        Raises:
            BadData: The file does not name it.
        """
        path = PurePosixPath(Path(where).as_posix())
        for name in (str(path), path.name):
            if name in self.labels:
                return self.labels[name]
        if path.suffix == ".npz" and path.stem in self._stems:
            return self.labels[self._stems[path.stem]]
        raise BadData(
            f"{self.path} has no picture '{where}'",
            fix="name the samples' files as the COCO file does: one .npz or picture each",
        )

    @cached_property
    def _stems(self) -> Mapping[str, str]:
        return {PurePosixPath(name).stem: name for name in self.labels}


def read_annotations(path: Path) -> Annotations:
    """Read a COCO file: ``images``, ``annotations`` with ``bbox``, and ``categories``.

    A label is a mapping: ``boxes`` (left, top, width, height), ``classes`` (the category's place
    among the sorted ids), ``ids``, ``crowd``, and ``size`` [width, height] where the file has it.

    Raises:
        BadData: It cannot be read or is none.
    """
    with arrays.translate_read_errors(path):
        sizes.require_memory(_GROWTH * path.stat().st_size, f"labels in {path}")
        try:
            data = json.loads(regular_file.read_text(path))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    try:
        kinds = sorted({int(record["id"]) for record in data["categories"]})
        places = {kind: at for at, kind in enumerate(kinds)}
        pictures: dict[int, dict[str, Any]] = {}
        names: dict[str, int] = {}
        for record in data["images"]:
            label: dict[str, Any] = {"boxes": [], "classes": [], "ids": [], "crowd": []}
            if record.get("width") and record.get("height"):
                label["size"] = [_parse_finite(record["width"]), _parse_finite(record["height"])]
            number, name = int(record["id"]), str(record["file_name"])
            if number in pictures or name in names:
                raise ValueError(f"the picture {number} {name} is there twice")
            pictures[number], names[name] = label, number
        for record in data["annotations"]:
            label, kind = pictures[int(record["image_id"])], int(record["category_id"])
            x, y, width, height = map(_parse_finite, record["bbox"])
            label["boxes"].append([x, y, width, height])
            label["classes"].append(places[kind])
            label["ids"].append(kind)
            label["crowd"].append(int(bool(record.get("iscrowd", 0))))
        return Annotations(path, {name: pictures[names[name]] for name in sorted(names)})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadData(
            f"{path} is no COCO file of boxes: {reason:.200}",
            fix="give images with id and file_name, annotations with image_id, category_id and "
            "bbox, and categories",
        ) from None


def _parse_finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number
