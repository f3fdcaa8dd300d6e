"""Labels and groups from a file: by the samples' names, or in their order."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ortune.core import regular_file, wording
from ortune.core.errors import BadData
from ortune.data import arrays, sizes
from ortune.data.formats import coco
from ortune.data.formats.coco import Annotations

_GROWTH = 32
"""Bytes that a label takes as a value of Python."""


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
        """Index the rows.

        Raises:
            BadData: Two rows name one file.
        """
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
    columns = {
        name: [row[at] for row in rows]
        for at, name in enumerate(header)
        if name not in ("label", "group")
    }
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
    with a column ``label``; another that has file names says which sample a row is of. Labels
    that all look like integers are, else numbers, else text.

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
            io.TextIOWrapper(
                regular_file.open_regular(path), encoding="utf-8-sig", newline=""
            ) as file,
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
        labels = _parse_label_texts([row[at] for row in rows])
        if len(header) > 1 and (named := _find_names(header, rows)) is not None:
            return NamedLabels(path, named[0], labels, groups, certain=named[1]), None
        return labels, groups
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
