"""Labels and groups from a file, in the samples' order."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortune.core import wording
from ortune.core.errors import BadData
from ortune.data import arrays, sizes
from ortune.data.formats import coco
from ortune.data.formats.coco import Annotations

_GROWTH = 32
"""Bytes that a label takes as a value of Python."""


def read_label_file(path: Path) -> tuple[list[Any] | Annotations, list[str] | None]:
    """Read labels, and groups where a .csv has a column of that name; a .json is a COCO file.

    A .npy has one label along its first dimension. A .csv has one label a line, or a header line
    with a column ``label``. Labels that all look like integers are, else numbers, else text.

    Raises:
        BadData: It cannot be read.
    """
    if path.suffix == ".npy":
        values = arrays.map_npy(path).read()
        sizes.require_memory(_GROWTH * values.size, f"labels in {path}")
        if values.ndim == 0:
            raise BadData(f"{path} holds one number", fix="give one label a sample")
        return [to_plain_label(row) for row in values], None
    if path.suffix == ".csv":
        with (
            arrays.translate_read_errors(path),
            path.open(newline="", encoding="utf-8-sig") as file,
        ):
            sizes.require_memory(_GROWTH * path.stat().st_size, f"labels in {path}")
            try:
                rows = [[cell.strip() for cell in row] for row in csv.reader(file) if any(row)]
            except csv.Error as error:
                raise ValueError(str(error)) from error
        if not rows:
            raise BadData(f"{path} is empty", fix="give one label a line")
        header = [cell.lower() for cell in rows[0]]
        if "label" in header:
            at, rows = header.index("label"), rows[1:]
        elif len(header) == 1:
            at = 0
        else:
            raise BadData(
                f"{path} has {wording.format_count(len(header), 'column')} and none is named "
                "label",
                fix="name the columns in the first line, one of them 'label'",
            )
        if short := next((n for n, row in enumerate(rows, 1) if len(row) != len(header)), None):
            raise BadData(f"{path}: row {short} lacks a column", fix="give every row all columns")
        groups = [row[header.index("group")] for row in rows] if "group" in header else None
        return _parse_label_texts([row[at] for row in rows]), groups
    if path.suffix == ".json":
        return coco.read_annotations(path), None
    raise BadData(
        f"labels in {path}: not a .npy, .csv or .json file",
        fix="give a .npy, a .csv or a COCO .json file",
    )


def to_plain_label(value: Any) -> Any:
    """Return a label as plain data: a number, a text, or lists of them."""
    array = np.asarray(value)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "backslashreplace")
    return array.item() if array.size == 1 else array.tolist()


def _parse_label_texts(texts: Sequence[str]) -> list[Any]:
    for kind in (int, float):
        try:
            return [kind(text) for text in texts]
        except ValueError:
            continue
    return list(texts)
