"""Labels and groups from a file: by the samples' names, or in their order; boxes of COCO."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ortune.core import regular_file, wording
from ortune.core.errors import BadData
from ortune.data import arrays, sizes


@dataclass(frozen=True)
class Annotations:
    """Labels of pictures."""

    path: Path
    # By the picture's file name, in the order of these names.
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


_GROWTH = 32
"""Bytes in memory that one of a file, or a label as a value of Python, becomes at most."""


class NamedLabels:
    """Labels and groups of a table that says to which file each belongs.

    Attributes:
        groups: Likewise; None without.
        certain: The names are files'. Else they may be numbers that happen to stand there.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        labels: list[Any],
        groups: list[str] | None,
        *,
        certain: bool,
    ) -> None:
        """Index the rows. Raises BadData: two rows name one file."""
        self._path, self._names = path, [PurePosixPath(name.replace("\\", "/")) for name in names]
        self.labels, self.groups, self.certain = labels, groups, certain
        self._takers: dict[int, str] = {}
        self._rows: dict[str, list[int]] = {}
        for at, name in enumerate(self._names):
            for spelling in _list_spellings(name):
                self._rows.setdefault(spelling, []).append(at)
        if twice := [name for name, count in Counter(self._names).items() if count > 1]:
            raise BadData(
                f"{path} names '{twice[0]}' more than once", fix="give each file one row"
            )

    def has_row(self, where: str) -> bool:
        """Say whether a row names the file of a sample."""
        return bool(self._find_rows(where)[1])

    def _find_rows(self, where: str) -> tuple[str, list[int]]:
        """Return how a sample's file is shown, and the rows that may be its."""
        shown = _PART.sub("", where)
        file = PurePosixPath(Path(shown).as_posix())
        # The whole path first: the last part of it may be that of several files.
        rows = (self._rows[text] for text in _list_spellings(file) if text in self._rows)
        return shown, next(rows, [])

    def take(self, where: str) -> tuple[Any, str | None]:
        """Return label and group of a sample.

        Args:
            where: The sample's file below the folder that was given; which row or chunk of it a
                sample is stands behind.

        Raises:
            BadData: No row names the file, or more than one does, or one names two files.
        """
        shown, rows = self._find_rows(where)
        if not rows:
            raise BadData(
                f"{self._path} has no row for '{shown}'; its first name is '{self._names[0]}'",
                fix="name every sample's file; without a column of names rows go in file order",
            )
        if len(rows) > 1:
            raise BadData(
                f"{self._path}: '{self._names[rows[0]]}' and '{self._names[rows[1]]}' may both "
                f"be '{shown}'",
                fix="write the names with their folders, as they lie below --data",
            )
        at = rows[0]
        if self._takers.setdefault(at, shown) != shown:
            raise BadData(
                f"{self._path}: '{self._names[at]}' may be '{self._takers[at]}' and '{shown}'",
                fix="write the names with their folders, as they lie below --data",
            )
        return self.labels[at], None if self.groups is None else self.groups[at]

    def require_all_taken(self) -> None:
        """Refuse rows that no sample took: raise BadData."""
        unused = [name for at, name in enumerate(self._names) if at not in self._takers]
        if unused:
            raise BadData(
                f"{self._path} names {wording.format_count(len(unused), 'file')} without a "
                f"sample, '{unused[0]}' first",
                fix="leave these rows out, or give the folder that has the files",
            )


def _list_spellings(name: PurePosixPath) -> tuple[str, ...]:
    """Return as what a file may be named: with folders or without, with its suffix or without."""
    stem = name.with_suffix("") if name.name else name
    return tuple(dict.fromkeys([str(name), str(stem), name.name, stem.name]))


_PART = re.compile(r"(?: (?:row|chunk|step) \d+)+$")
_NAME_COLUMNS = frozenset(
    {"file", "filename", "file_name", "file name", "filepath", "file_path", "path", "image",
     "image_name", "image_path", "picture", "sample", "wav", "audio", "name", "id", "image_id"}
)  # fmt: skip
_MAY_BE_OTHER = frozenset({"name", "id", "image_id", "sample"})
"""Columns of these names may hold numbers or classes: they count where the first sample is one."""
_FILE = re.compile(r".*[^.]\.(?=\w*[a-zA-Z])\w{1,6}")


def _find_names(
    header: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], bool] | None:
    """Return the column that names the samples' files, and whether that is certain; None: none."""
    extras = ("label", "text", "group")
    columns = {n: [row[k] for row in rows] for k, n in enumerate(header) if n not in extras}
    for column in columns.values():
        if column and all(_FILE.fullmatch(cell) for cell in column):
            return column, True
    for name in sorted(header, key=_MAY_BE_OTHER.__contains__):
        column, certain = columns.get(name, []), name not in _MAY_BE_OTHER
        if name in _NAME_COLUMNS and column and (certain or len(set(column)) == len(column)):
            return column, certain
    return None


def read_label_file(path: Path) -> tuple[list[Any] | Annotations | NamedLabels, list[str] | None]:
    """Read labels, and groups where a .csv has a column of that name; a .json is a COCO file.

    A .npy has one label along its first dimension. A .csv has one label a line, or a header line
    with a column ``label`` or ``text``; another that has file names says which sample a row is
    of. Labels that all look like integers are, else numbers, else text.

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
        with arrays.open_text(path) as file:
            sizes.require_memory(_GROWTH * path.stat().st_size, f"labels in {path}")
            try:
                rows = [[cell.strip() for cell in row] for row in csv.reader(file) if any(row)]
            except csv.Error as error:
                raise ValueError(str(error)) from error
        if not rows:
            raise BadData(f"{path} is empty", fix="give one label a line")
        header = [cell.lower() for cell in rows[0]]
        if label := next((name for name in ("label", "text") if name in header), None):
            at, rows = header.index(label), rows[1:]
        elif len(header) == 1:
            at = 0
        else:
            columns = wording.format_count(len(header), "column")
            raise BadData(
                f"{path} has {columns} and none is named label",
                fix="name the columns in the first line, one of them 'label'",
            )
        if short := next((n for n, row in enumerate(rows, 1) if len(row) != len(header)), None):
            raise BadData(f"{path}: row {short} lacks a column", fix="give every row all columns")
        groups = [row[header.index("group")] for row in rows] if "group" in header else None
        labels = _parse_label_texts([row[at] for row in rows])
        if len(header) > 1 and (named := _find_names(header, rows)) is not None:
            return NamedLabels(path, named[0], labels, groups, certain=named[1]), None
        return labels, groups
    if path.suffix == ".json":
        return read_annotations(path), None
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
