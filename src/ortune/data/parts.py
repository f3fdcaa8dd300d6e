"""A large source in parts: files with their digests and records, cut into ranges of records.

A record is a row of a .npz or of a table, a line, or a file of one sample.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ortune.core import regular_file
from ortune.core.errors import BadData
from ortune.core.event import Progress, Sink
from ortune.core.facts import TensorSpec
from ortune.core.hardware.cpus import effective_cpus
from ortune.data import arrays, batches, sources
from ortune.data import sentences as texts
from ortune.data.formats import rows
from ortune.data.sources import ARCHIVES, LINES, SourcePart

TEXTS = LINES | texts.SUFFIXES
"""Kinds of files whose records are lines."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a source."""

    name: str  # below the source's folder, with ``/``
    size: int  # Bytes
    digest: str  # SHA-256 in hex digits
    records: int


def list_source_files(
    source: str | Path, inputs: Sequence[TensorSpec], sink: Sink
) -> tuple[Path, tuple[SourceFile, ...]]:
    """Read all files of a source once; return their folder, and the files in the order of names.

    Args:
        inputs: Of the model: rows of a .npz are records where they share a batch dimension.

    Raises:
        BadData: There is none, or one cannot be read or is of no kind that has records.
    """
    path = Path(source)
    if not path.exists():
        raise BadData(f"no file or folder {path}", fix="give a folder or a file of samples")
    folder, files = (
        (path, sources.list_folder_files(path)) if path.is_dir() else (path.parent, [path])
    )
    splits = batches.count_sample_rows(inputs) is not None

    def examine(file: Path) -> SourceFile:
        with arrays.translate_read_errors(file), regular_file.open_regular(file) as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
        suffix = file.suffix.lower()
        if suffix in ARCHIVES or suffix == ".npy":
            columns = (
                arrays.open_npz(file).columns if suffix in ARCHIVES else {"": arrays.map_npy(file)}
            )
            shape = next(iter(columns.values())).shape
            records = shape[0] if splits and shape else 1
        elif suffix in TEXTS:
            records = sum(1 for _ in _read_records(file))
        else:
            records = rows.count_parquet_rows(file) if suffix in rows.PARQUET else 1
        return SourceFile(file.relative_to(folder).as_posix(), size, digest, records)

    listing = []
    with ThreadPoolExecutor(effective_cpus()) as threads:
        for done, file in enumerate(threads.map(examine, files), 1):
            listing.append(file)
            sink(Progress("reading the files", done, len(files)))
    return folder, tuple(listing)


def _read_records(path: Path) -> Iterator[str]:
    """Yield the records of a file of text."""
    if path.suffix.lower() in LINES:
        return (line for _, line in sources.read_lines(path))
    return (json.dumps(row) for _, row in texts.read_rows(path))


@dataclass(frozen=True)
class NumberedPart(SourcePart):
    """A part of a source with its number.

    Attributes:
        digest: Of what it is read from: some lines, or whole files.
        records: In it.
    """

    number: int
    digest: str
    records: int


def cut_parts(
    folder: Path, files: Iterable[SourceFile], most: int, salt: str
) -> Iterator[NumberedPart]:
    """Cut a source into parts of so many records; the last has what is left.

    Files of text of which a part has some lines are read once more.

    Args:
        most: Records of a part.
        salt: What else the digests of the parts depend on.
    """
    slices: list[tuple[SourceFile, range]] = []
    number, room, hasher = 0, most, hashlib.sha256(salt.encode())

    def close() -> NumberedPart:
        names = [(f.name, None if len(r) == f.records else r) for f, r in slices]
        return NumberedPart(folder, tuple(names), number, hasher.hexdigest(), most - room)

    for file in files:
        path, start = folder / file.name, 0
        is_text = path.suffix.lower() in TEXTS and file.records > room
        lines = _read_records(path) if is_text else iter(())
        while start < file.records:
            records = range(start, min(start + room, file.records))
            slices.append((file, records))
            hasher.update(f"{file.name}\0{records}\0".encode())
            if is_text:
                for line in itertools.islice(lines, len(records)):
                    hasher.update(line.encode())
            else:
                hasher.update(file.digest.encode())
            start, room = records.stop, room - len(records)
            if not room:
                yield close()
                slices, number, room = [], number + 1, most
                hasher = hashlib.sha256(salt.encode())
    if slices:
        yield close()
