"""Where samples come from: every kind of source as an iterator of blocks, whole or in parts."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from ortune.core import preprocess, regular_file, wording
from ortune.core.errors import BadData, OrtuneError
from ortune.core.event import Progress, Sink
from ortune.core.facts import TensorSpec
from ortune.core.hardware import memory
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import user_function
from ortune.data import arrays, batches, checks, images, sizes
from ortune.data import sentences as texts
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import GROUP, LABEL
from ortune.data.formats import rows, sounds
from ortune.data.reading import Reading

Source: TypeAlias = "str | Path | Callable[[], Iterable[Mapping[str, Any]]]"
ARCHIVES, LINES = frozenset({".npz"}), frozenset({".jsonl", ".ndjson"})
_OF_ONE_SAMPLE = (images.SUFFIXES, sounds.SUFFIXES)
"""Kinds of files that are a sample each: they may lie in sub-folders, too."""
_LINE, _GROWTH = 2**20, 32
"""Characters of a line that are read in any case; bytes in memory that one becomes at most."""
_KINDS = (
    "a folder of .npz, .jsonl, .parquet, of one .npy or sub-folder per input, images or .wav; "
    "a .npz, .jsonl, .wav, .parquet or image; .txt or .csv for a model's folder"
)


@dataclass(frozen=True)
class SourcePart:
    """Some records of a source's files: rows of a .npz or table, lines, or files of one sample."""

    folder: Path  # of the files; of a source that is one file, the folder that this is in
    # Files below the folder and the records that are read of each, in order; all of them where
    # there is no range.
    slices: tuple[tuple[str, range | None], ...]


def open_source(
    source: Source, reading: Reading, records: range | None = None
) -> Iterator[NamedArrays]:
    """Find out what kind of source it is and iterate over its blocks.

    Args:
        records: Rows or lines that are read of a file with several; all without it.

    Raises:
        BadData: It does not exist, is empty or of no known kind.
    """
    if callable(source):
        user_function.demand_callable(source, describe_source(source), *user_function.DATA)
        return _call_function(source, describe_source(source), reading)
    if isinstance(source, str) and source.startswith(rows.PREFIX):
        return rows.read_hub_blocks(source, reading)
    path = Path(source)
    if not path.exists():
        if isinstance(source, str) and user_function.is_function(source):
            function = user_function.import_function(source, *user_function.DATA)
            return _call_function(function, source, reading)
        raise BadData(f"no file or folder {path}", fix=f"give {_KINDS}; or FILE.py:NAME")
    if path.is_dir():
        return _open_folder(path, reading)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _open_archives([path], records)
    if suffix in (*LINES, *texts.SUFFIXES):
        return _open_lines([path], reading, records)
    if suffix in images.SUFFIXES:
        return images.read_image_blocks([path], path.parent, reading)
    if suffix in sounds.SUFFIXES:
        return sounds.read_sound_blocks([path], path.parent, reading)
    if suffix in rows.PARQUET:
        return rows.read_parquet_blocks([path], reading, records)
    if suffix == ".npy" and len(reading.needed) == 1:
        block = NamedArrays(path.name, {reading.needed[0].name: arrays.map_npy(path)})
        return iter([block if records is None else block.cut(records)])
    raise BadData(f"{path} is not of a supported kind", fix=f"give {_KINDS}; or FILE.py:NAME")


def describe_source(source: Source | SourcePart) -> str:
    """Return how a source is shown."""
    if isinstance(source, SourcePart):
        return str(source.folder)
    if callable(source):
        qualified_name = getattr(source, "__qualname__", type(source).__name__)
        return f"{getattr(source, '__module__', '')}:{qualified_name}"
    return str(source)


def _open_folder(folder: Path, reading: Reading) -> Iterator[NamedArrays]:
    entries = _list_entries(folder)
    kind, files = _find_samples(entries)
    if kind is ARCHIVES:
        if other_count := len(entries) - len(files):
            reading.note(
                f"{wording.format_count(len(files), '.npz file')}; not read: "
                f"{wording.format_count(other_count, 'other')} in the folder"
            )
        return _open_archives(files)
    parts = [p for p in entries if p.suffix == ".npy" or (p.is_dir() and any(p.glob("*.npy")))]
    if parts:
        return _read_per_input(folder, parts, reading)
    if kind is images.SUFFIXES:
        return images.read_image_blocks(files, folder, reading)
    if kind is sounds.SUFFIXES:
        return sounds.read_sound_blocks(files, folder, reading)
    if kind is rows.PARQUET:
        return rows.read_parquet_blocks(files, reading)
    if kind is LINES or (kind is texts.SUFFIXES and reading.sentences):
        return _open_lines(files, reading)
    raise _make_empty_error(folder, entries)


def list_folder_files(folder: Path) -> list[Path]:
    """Return the files of a folder that `open_source` reads, in order, where each has samples.

    Raises:
        BadData: There are none, or files that only together make samples: a .npy per input.
    """
    entries = _list_entries(folder)
    _, files = _find_samples(entries)
    if not files:
        raise _make_empty_error(folder, entries)
    return files


def _find_samples(entries: Sequence[Path]) -> tuple[frozenset[str], list[Path]]:
    """Return the kind of files that a folder is read for, and its files of it; none of none."""
    for suffixes, files in _list_kinds(entries):
        if matches := [p for p in files if p.suffix.lower() in suffixes and p.is_file()]:
            return suffixes, matches
    return frozenset(), []


def _list_kinds(entries: Sequence[Path]) -> Iterator[tuple[frozenset[str], Sequence[Path]]]:
    """Yield kinds of files, and where they may lie: sub-folders are looked into late."""
    yield from ((kind, entries) for kind in (ARCHIVES, *_OF_ONE_SAMPLE))
    nested = [path for entry in entries if entry.is_dir() for path in _list_entries(entry)]
    yield from ((kind, nested) for kind in _OF_ONE_SAMPLE)
    yield from ((kind, entries) for kind in (rows.PARQUET, LINES, texts.SUFFIXES))


def _list_entries(folder: Path) -> list[Path]:
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(shown, key=lambda path: path.name)


def _make_empty_error(folder: Path, entries: Sequence[Path]) -> BadData:
    reason = "no file is of a known kind" if entries else "it is empty"
    return BadData(f"no samples in {folder}: {reason}", fix=f"give {_KINDS}")


def open_part(part: SourcePart, reading: Reading) -> Iterator[NamedArrays]:
    """Iterate over the blocks of some records; see `open_source`."""
    if reading.pictures is None:  # of all sub-folders
        pictures = preprocess.read_preprocess_keys(part.folder / preprocess.SETTINGS)
        reading = replace(reading, pictures=pictures)
    for name, records in part.slices:
        path, above = part.folder / name, PurePosixPath(name).parent
        for block in open_source(path, reading, records):
            yield replace(block, where=str(above / block.where))


def _open_archives(paths: Sequence[Path], records: range | None = None) -> Iterator[NamedArrays]:
    packed = unpacked = 0
    for path in paths:
        opened = arrays.open_npz(path)
        packed += path.stat().st_size
        columns = opened.columns.values()
        unpacked += sum(sizes.array_bytes(column.shape, column.dtype) for column in columns)
        regular_file.require_unpacked(unpacked, packed, path)
        if records is not None:
            opened = opened.cut(records)
        yield opened


def _read_per_input(
    folder: Path, parts: Sequence[Path], reading: Reading
) -> Iterator[NamedArrays]:
    """Read D/NAME.npy (stacked samples) or D/NAME/*.npy (one block a file, in name order)."""
    specs = reading.specs
    extra = [part.stem for part in parts if part.stem in (LABEL, GROUP) and part.stem not in specs]
    named = [part.stem for part in parts if part.stem not in extra]
    checks.check_input_names(str(folder), named, reading.inputs, reading.optional)
    stacked = {part.stem: arrays.map_npy(part) for part in parts if part.is_file()}
    folders = [part for part in parts if part.is_dir()]
    files = {p.name: sorted(p.glob("*.npy"), key=lambda path: path.name) for p in folders}
    if not files:
        yield NamedArrays(str(folder), stacked)
        return
    if mixed := sorted(set(stacked) & set(specs)):
        raise BadData(
            f"{folder}: {', '.join(mixed)} is one .npy, other inputs are folders",
            fix="use one form for all inputs",
        )
    counts = {name: len(input_files) for name, input_files in files.items()}
    counts |= {name: len(column.read()) for name, column in stacked.items()}
    if len(set(counts.values())) > 1:
        spelled = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BadData(f"{folder}: different numbers of files: {spelled}", fix="give one a sample")
    stacked_values = {name: column.read() for name, column in stacked.items()}
    for at, paths in enumerate(zip(*files.values(), strict=True)):
        columns = {name: arrays.map_npy(path) for name, path in zip(files, paths, strict=True)}
        columns |= {name: Column.from_array(array[at]) for name, array in stacked_values.items()}
        yield NamedArrays(f"{paths[0].parent.name}/{paths[0].name}", columns)


def _open_lines(
    paths: Sequence[Path], reading: Reading, records: range | None = None
) -> Iterator[NamedArrays]:
    first, stop = (records.start, records.stop) if records else (0, None)
    for path in paths:
        if path.suffix.lower() in texts.SUFFIXES:
            if reading.sentences is None:
                raise BadData(
                    f"{path} holds texts, and no tokenizer.json lies beside the model",
                    fix="give the model's folder in the place of its file, or samples as .npz",
                )
            for where, row in itertools.islice(texts.read_rows(path), first, stop):
                yield from reading.sentences.make_blocks(row, where)
            continue
        for where, line in itertools.islice(read_lines(path), first, stop):
            try:
                item = json.loads(line)
            except RecursionError:
                raise BadData(f"{where} is nested too deeply", fix="write nested lists") from None
            except json.JSONDecodeError as error:
                raise BadData(
                    f"{where} is not JSON: {error.msg} at column {error.colno}",
                    fix="write one object a line: input name to number or nested lists",
                ) from None
            except ValueError:  # Python reads no integer of thousands of digits
                raise BadData(
                    f"{where} has a number of thousands of digits", fix="write shorter numbers"
                ) from None
            yield from _make_blocks(item, where, reading)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file that are not blank, each with where it is.

    Raises:
        BadData: It cannot be read, or a line does not fit the memory.
    """
    most = max(_LINE, memory.count_allowed_bytes() // _GROWTH)
    with arrays.open_text(path, "utf-8", newline=None) as file:
        for number, line in enumerate(iter(lambda: file.readline(most), ""), 1):
            if not line.strip():
                continue
            where = f"{path.name} line {number}"
            if len(line) == most:
                raise BadData(
                    f"{where} is longer than the {memory.format_bytes(most)} that fit the memory",
                    fix="give one sample a line, or large ones as .npz",
                )
            yield where, line


def _call_function(
    function: Callable[[], Iterable[Mapping[str, Any]]], shown: str, reading: Reading
) -> Iterator[NamedArrays]:
    try:
        for at, item in enumerate(function()):
            yield from _make_blocks(item, f"{shown} item {at}", reading)
    except OrtuneError:
        raise
    except Exception as error:
        raise BadData(
            f"{shown} fails: {user_function.describe_error(error)}",
            fix="it takes nothing and yields dicts",
        ) from error


def _make_blocks(item: Any, where: str, reading: Reading) -> Iterator[NamedArrays]:
    if not isinstance(item, Mapping):
        raise BadData(
            f"{where} is {type(item).__name__}, not a mapping", fix="give input name: values"
        )
    if reading.sentences is not None and texts.TEXT in item:
        yield from reading.sentences.make_blocks(item, where)
        return
    specs = reading.specs
    columns = {
        str(key): Column.from_array(checks.as_array(value, where, specs.get(str(key))))
        for key, value in item.items()
    }
    yield NamedArrays(where, columns)


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
    folder, files = (path, list_folder_files(path)) if path.is_dir() else (path.parent, [path])
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
        return (line for _, line in read_lines(path))
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
