"""Where samples come from: every kind of source as an iterator of blocks."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from ortune.core import preprocess, regular_file, wording
from ortune.core.errors import BadData, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.hardware import memory
from ortune.core.plugins import user_function
from ortune.data import arrays, checks, images, sizes
from ortune.data import sentences as texts
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import GROUP, LABEL, Note
from ortune.data.formats import rows, sounds
from ortune.data.formats.features import LogMel
from ortune.data.sentences import Sentences

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
    """Some records of a source's files: rows of a .npz or table, lines, or files of one sample.

    Attributes:
        folder: Of the files; of a source that is one file, the folder that this is in.
        slices: Files below the folder and the records that are read of each, in order; all of
            them where there is no range.
    """

    folder: Path
    slices: tuple[tuple[str, range | None], ...]


def open_source(
    source: Source,
    inputs: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    classes: Sequence[str] = (),
    *,
    sentences: Sentences | None = None,
    features: LogMel | None = None,
    records: range | None = None,
) -> Iterator[NamedArrays]:
    """Find out what kind of source it is and iterate over its blocks.

    Args:
        pictures: Keys of ``preprocess.toml`` in the place of those beside images.
        optional: Inputs that may be left out.
        classes: The model's own, in the order of their numbers: folders are called by them.
        sentences: What tokenizes rows with texts; None where the model's folder has no tokenizer.
        features: What a model takes in the place of sound.
        records: Rows or lines that are read of a file with several; all without it.

    Raises:
        BadData: It does not exist, is empty or of no known kind.
    """
    needed = [spec for spec in inputs if spec.name not in optional]
    if callable(source):
        user_function.demand_callable(source, describe_source(source), *user_function.DATA)
        return _call_function(source, describe_source(source), inputs, sentences)
    if isinstance(source, str) and source.startswith(rows.PREFIX):
        return rows.read_hub_blocks(source, inputs, note, pictures, optional, sentences)
    path = Path(source)
    if not path.exists():
        if isinstance(source, str) and user_function.is_function(source):
            return _call_function(
                user_function.import_function(source, *user_function.DATA),
                source,
                inputs,
                sentences,
            )
        raise BadData(f"no file or folder {path}", fix=f"give {_KINDS}; or FILE.py:NAME")
    if path.is_dir():
        return _open_folder(
            path, inputs, needed, note, pictures, classes, sentences=sentences, features=features
        )
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _open_archives([path], records)
    if suffix in (*LINES, *texts.SUFFIXES):
        return _open_lines([path], inputs, sentences, records)
    if suffix in images.SUFFIXES:
        return images.read_image_blocks([path], path.parent, needed, note, pictures)
    if suffix in sounds.SUFFIXES:
        return sounds.read_sound_blocks([path], path.parent, needed, note, features=features)
    if suffix in rows.PARQUET:
        return rows.read_parquet_blocks(
            [path], inputs, note, pictures, optional, sentences, records=records
        )
    if suffix == ".npy" and len(needed) == 1:
        block = NamedArrays(path.name, {needed[0].name: arrays.map_npy(path)})
        return iter([block if records is None else block.cut(records)])
    raise BadData(f"{path} is not of a supported kind", fix=f"give {_KINDS}; or FILE.py:NAME")


def describe_source(source: Source) -> str:
    """Return how a source is shown."""
    if callable(source):
        qualified_name = getattr(source, "__qualname__", type(source).__name__)
        return f"{getattr(source, '__module__', '')}:{qualified_name}"
    return str(source)


def _open_folder(
    folder: Path,
    inputs: Sequence[TensorSpec],
    needed: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None,
    classes: Sequence[str],
    *,
    sentences: Sentences | None,
    features: LogMel | None,
) -> Iterator[NamedArrays]:
    entries = _list_entries(folder)
    kind, files = _find_samples(entries)
    if kind is ARCHIVES:
        if other_count := len(entries) - len(files):
            note(
                f"{wording.format_count(len(files), '.npz file')}; not read: "
                f"{wording.format_count(other_count, 'other')} in the folder"
            )
        return _open_archives(files)
    parts = [p for p in entries if p.suffix == ".npy" or (p.is_dir() and any(p.glob("*.npy")))]
    if parts:
        return _read_per_input(folder, parts, inputs, needed)
    if kind is images.SUFFIXES:
        return images.read_image_blocks(files, folder, needed, note, pictures, classes)
    if kind is sounds.SUFFIXES:
        return sounds.read_sound_blocks(files, folder, needed, note, classes, features)
    if kind is rows.PARQUET:
        optional = {spec.name for spec in inputs} - {spec.name for spec in needed}
        return rows.read_parquet_blocks(files, inputs, note, pictures, optional, sentences)
    if kind is LINES or (kind is texts.SUFFIXES and sentences):
        return _open_lines(files, inputs, sentences)
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
        if matches := _select_by_suffix(files, suffixes):
            return suffixes, matches
    return frozenset(), []


def _list_kinds(entries: Sequence[Path]) -> Iterator[tuple[frozenset[str], Sequence[Path]]]:
    """Yield kinds of files, and where they may lie: sub-folders are looked into late."""
    yield ARCHIVES, entries
    yield from ((kind, entries) for kind in _OF_ONE_SAMPLE)
    nested = _list_nested(entries)
    yield from ((kind, nested) for kind in _OF_ONE_SAMPLE)
    yield from ((kind, entries) for kind in (rows.PARQUET, LINES, texts.SUFFIXES))


def _list_entries(folder: Path) -> list[Path]:
    return sorted(
        (p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.name
    )


def _list_nested(entries: Sequence[Path]) -> list[Path]:
    return [path for entry in entries if entry.is_dir() for path in _list_entries(entry)]


def _make_empty_error(folder: Path, entries: Sequence[Path]) -> BadData:
    reason = "no file is of a known kind" if entries else "it is empty"
    return BadData(f"no samples in {folder}: {reason}", fix=f"give {_KINDS}")


def open_part(
    part: SourcePart,
    inputs: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None = None,
    *,
    sentences: Sentences | None = None,
    features: LogMel | None = None,
) -> Iterator[NamedArrays]:
    """Iterate over the blocks of some records; see `open_source`."""
    if pictures is None:  # of all sub-folders
        pictures = preprocess.read_preprocess_keys(part.folder / preprocess.SETTINGS)
    for name, records in part.slices:
        path, above = part.folder / name, PurePosixPath(name).parent
        for block in open_source(
            path, inputs, note, pictures, sentences=sentences, features=features, records=records
        ):
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


def _select_by_suffix(files: Sequence[Path], suffixes: frozenset[str]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in suffixes and path.is_file()]


def _read_per_input(
    folder: Path, parts: Sequence[Path], inputs: Sequence[TensorSpec], needed: Sequence[TensorSpec]
) -> Iterator[NamedArrays]:
    """Read D/NAME.npy (stacked samples) or D/NAME/*.npy (one block a file, in name order)."""
    specs = checks.specs_by_name(inputs)
    extra = [part.stem for part in parts if part.stem in (LABEL, GROUP) and part.stem not in specs]
    optional = set(specs).difference(spec.name for spec in needed)
    checks.check_input_names(
        str(folder), [p.stem for p in parts if p.stem not in extra], inputs, optional
    )
    stacked = {part.stem: arrays.map_npy(part) for part in parts if part.is_file()}
    files = {
        part.name: sorted(part.glob("*.npy"), key=lambda path: path.name)
        for part in parts
        if part.is_dir()
    }
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
    paths: Sequence[Path],
    inputs: Sequence[TensorSpec],
    sentences: Sentences | None,
    records: range | None = None,
) -> Iterator[NamedArrays]:
    for path in paths:
        read = _read_texts if path.suffix.lower() in texts.SUFFIXES else _read_lines
        yield from read(path, inputs, sentences, records)


def _read_texts(
    path: Path, inputs: Sequence[TensorSpec], sentences: Sentences | None, records: range | None
) -> Iterator[NamedArrays]:
    if sentences is None:
        raise BadData(
            f"{path} holds texts, and no tokenizer.json lies beside the model",
            fix="give the model's folder in the place of its file, or samples as .npz",
        )
    first, stop = (records.start, records.stop) if records else (0, None)
    for where, row in itertools.islice(texts.read_rows(path), first, stop):
        yield from sentences.make_blocks(row, where)


def _read_lines(
    path: Path, inputs: Sequence[TensorSpec], sentences: Sentences | None, records: range | None
) -> Iterator[NamedArrays]:
    first, stop = (records.start, records.stop) if records else (0, None)
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
        yield from _make_blocks(item, where, inputs, sentences)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file that are not blank, each with where it is.

    Raises:
        BadData: It cannot be read, or a line does not fit the memory.
    """
    most = max(_LINE, memory.count_allowed_bytes() // _GROWTH)
    with (
        arrays.translate_read_errors(path),
        io.TextIOWrapper(regular_file.open_regular(path), encoding="utf-8") as file,
    ):
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
    function: Callable[[], Iterable[Mapping[str, Any]]],
    shown: str,
    inputs: Sequence[TensorSpec],
    sentences: Sentences | None,
) -> Iterator[NamedArrays]:
    try:
        for at, item in enumerate(function()):
            yield from _make_blocks(item, f"{shown} item {at}", inputs, sentences)
    except OrtuneError:
        raise
    except Exception as error:
        raise BadData(
            f"{shown} fails: {user_function.describe_error(error)}",
            fix="it takes nothing and yields dicts",
        ) from error


def _make_blocks(
    item: Any, where: str, inputs: Sequence[TensorSpec], sentences: Sentences | None
) -> Iterator[NamedArrays]:
    if not isinstance(item, Mapping):
        raise BadData(
            f"{where} is {type(item).__name__}, not a mapping", fix="give input name: values"
        )
    if sentences is not None and texts.TEXT in item:
        yield from sentences.make_blocks(item, where)
        return
    specs = checks.specs_by_name(inputs)
    yield NamedArrays(
        where,
        {
            str(key): Column.from_array(checks.as_array(value, where, specs.get(str(key))))
            for key, value in item.items()
        },
    )
