"""Where samples come from: every kind of source as an iterator of blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ortune.core import wording
from ortune.core.errors import BadData, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.hardware import memory
from ortune.core.plugins import user_function
from ortune.data import arrays, checks, images
from ortune.data.arrays import Column, NamedArrays
from ortune.data.batches import GROUP, LABEL
from ortune.data.checks import Note
from ortune.data.formats import rows, sounds

Source: TypeAlias = "str | Path | Callable[[], Iterable[Mapping[str, Any]]]"
_LINE, _GROWTH = 2**20, 32
"""Characters of a line that are read in any case; bytes in memory that one becomes at most."""
_KINDS = (
    "a folder of .npz, of one .npy or sub-folder per input, of images, .wav or .parquet files; "
    "a .npz, .jsonl, .wav, .parquet or image"
)


def open_source(
    source: Source,
    inputs: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None = None,
    spared: Collection[str] = (),
) -> Iterator[NamedArrays]:
    """Find out what kind of source it is and iterate over its blocks.

    Args:
        pictures: Keys of ``preprocess.toml`` in the place of those beside images.
        spared: Inputs that may be left out.

    Raises:
        BadData: It does not exist, is empty or of no known kind.
    """
    needed = [spec for spec in inputs if spec.name not in spared]
    if callable(source):
        user_function.demand(source, name(source), *user_function.DATA)
        return _called(source, name(source), inputs)
    if isinstance(source, str) and source.startswith(rows.PREFIX):
        return rows.hub_blocks(source, inputs, note, pictures, spared)
    path = Path(source)
    if not path.exists():
        if isinstance(source, str) and user_function.is_function(source):
            return _called(user_function.function(source, *user_function.DATA), source, inputs)
        raise BadData(f"no file or folder {path}", fix=f"give {_KINDS}; or module:function")
    if path.is_dir():
        return _folder(path, inputs, needed, note, pictures)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return iter([arrays.npz(path)])
    if suffix in (".jsonl", ".ndjson"):
        return _lines(path, inputs)
    if suffix in images.SUFFIXES:
        return images.blocks([path], path.parent, needed, note, pictures)
    if suffix in sounds.SUFFIXES:
        return sounds.blocks([path], path.parent, needed, note)
    if suffix in rows.PARQUET:
        return rows.parquet_blocks([path], inputs, note, pictures, spared)
    if suffix == ".npy" and len(needed) == 1:
        return iter([NamedArrays(path.name, {needed[0].name: arrays.npy(path)})])
    raise BadData(f"{path} is not of a supported kind", fix=f"give {_KINDS}; or module:function")


def name(source: Source) -> str:
    """Return how a source is shown."""
    if callable(source):
        own = getattr(source, "__qualname__", type(source).__name__)
        return f"{getattr(source, '__module__', '')}:{own}"
    return str(source)


def _folder(
    folder: Path,
    inputs: Sequence[TensorSpec],
    needed: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None,
) -> Iterator[NamedArrays]:
    entries = sorted(
        (p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.name
    )
    if archives := [p for p in entries if p.suffix == ".npz"]:
        if others := len(entries) - len(archives):
            note(
                f"{wording.count(len(archives), '.npz file')}; not read: "
                f"{wording.count(others, 'other')} in the folder"
            )
        return (arrays.npz(path) for path in archives)
    parts = [p for p in entries if p.suffix == ".npy" or (p.is_dir() and any(p.glob("*.npy")))]
    if parts:
        return _per_input(folder, parts, inputs, needed)
    nested = [q for p in entries if p.is_dir() for q in sorted(p.iterdir(), key=lambda q: q.name)]
    for files in (entries, nested):
        if found := _of_kind(files, images.SUFFIXES):
            return images.blocks(found, folder, needed, note, pictures)
        if found := _of_kind(files, sounds.SUFFIXES):
            return sounds.blocks(found, folder, needed, note)
    if found := _of_kind(entries, rows.PARQUET):
        spared = {spec.name for spec in inputs} - {spec.name for spec in needed}
        return rows.parquet_blocks(found, inputs, note, pictures, spared)
    raise BadData(
        f"no samples in {folder}: "
        + ("it is empty" if not entries else "no file is of a known kind"),
        fix=f"give {_KINDS}",
    )


def _of_kind(files: Sequence[Path], suffixes: frozenset[str]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in suffixes and path.is_file()]


def _per_input(
    folder: Path, parts: Sequence[Path], inputs: Sequence[TensorSpec], needed: Sequence[TensorSpec]
) -> Iterator[NamedArrays]:
    """Read D/NAME.npy (stacked samples) or D/NAME/*.npy (one block a file, in name order)."""
    known = checks.by_name(inputs)
    extra = [part.stem for part in parts if part.stem in (LABEL, GROUP) and part.stem not in known]
    spared = set(known).difference(spec.name for spec in needed)
    checks.names(str(folder), [p.stem for p in parts if p.stem not in extra], inputs, spared)
    stacked = {part.stem: arrays.npy(part) for part in parts if part.is_file()}
    files = {
        part.name: sorted(part.glob("*.npy"), key=lambda path: path.name)
        for part in parts
        if part.is_dir()
    }
    if not files:
        yield NamedArrays(str(folder), stacked)
        return
    if mixed := sorted(set(stacked) & set(known)):
        raise BadData(
            f"{folder}: {', '.join(mixed)} is one .npy, other inputs are folders",
            fix="use one form for all inputs",
        )
    counts = {name: len(found) for name, found in files.items()}
    counts |= {name: len(column.read()) for name, column in stacked.items()}
    if len(set(counts.values())) > 1:
        spelled = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BadData(f"{folder}: different numbers of files: {spelled}", fix="give one a sample")
    beside = {name: column.read() for name, column in stacked.items()}
    for at, paths in enumerate(zip(*files.values(), strict=True)):
        columns = {name: arrays.npy(path) for name, path in zip(files, paths, strict=True)}
        columns |= {name: Column.of(array[at]) for name, array in beside.items()}
        yield NamedArrays(f"{paths[0].parent.name}/{paths[0].name}", columns)


def _lines(path: Path, inputs: Sequence[TensorSpec]) -> Iterator[NamedArrays]:
    most = max(_LINE, memory.allowed() // _GROWTH)
    with arrays.reading(path), path.open(encoding="utf-8") as file:
        for number, line in enumerate(iter(lambda: file.readline(most), ""), 1):
            if not line.strip():
                continue
            where = f"{path.name} line {number}"
            if len(line) == most:
                raise BadData(
                    f"{where} is longer than the {memory.spell(most)} that fit the memory",
                    fix="give one sample a line, or large ones as .npz",
                )
            try:
                item = json.loads(line)
            except RecursionError:
                raise BadData(f"{where} is nested too deeply", fix="write nested lists") from None
            except json.JSONDecodeError as error:
                raise BadData(
                    f"{where} is not JSON: {error.msg} at column {error.colno}",
                    fix="write one object a line: input name to number or nested lists",
                ) from None
            yield _block(item, where, inputs)


def _called(
    function: Callable[[], Iterable[Mapping[str, Any]]], shown: str, inputs: Sequence[TensorSpec]
) -> Iterator[NamedArrays]:
    try:
        for at, item in enumerate(function()):
            yield _block(item, f"{shown} item {at}", inputs)
    except OrtuneError:
        raise
    except Exception as error:
        raise BadData(
            f"{shown} fails: {user_function.reason(error)}",
            fix="it takes nothing and yields dicts",
        ) from error


def _block(item: Any, where: str, inputs: Sequence[TensorSpec]) -> NamedArrays:
    if not isinstance(item, Mapping):
        raise BadData(
            f"{where} is {type(item).__name__}, not a mapping", fix="give input name: values"
        )
    specs = checks.by_name(inputs)
    return NamedArrays(
        where,
        {
            str(key): Column.of(checks.as_array(value, where, specs.get(str(key))))
            for key, value in item.items()
        },
    )
