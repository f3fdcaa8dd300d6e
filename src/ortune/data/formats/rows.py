"""Rows of tables as samples: columns named as the inputs, label and group beside them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.plugins import user_function
from ortune.core.preprocess import SETTINGS
from ortune.data import arrays, checks, images, sizes
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import Note

BESIDE = ("label", "group")
Pictures: TypeAlias = Callable[[Any, str], NDArray[Any]]
"""From a picture and where it is from to the tensor of its input."""


def wanted(
    there: Collection[str],
    inputs: Sequence[TensorSpec],
    note: Note,
    where: str,
    spared: Collection[str] = (),
) -> list[str]:
    """Return the columns that are read: the inputs, label and group; others are noted.

    Args:
        spared: Inputs that may be left out.

    Raises:
        BadData: An input is missing.
    """
    known = checks.by_name(inputs)
    found = [name for name in there if name in known or name in BESIDE]
    demanded = [spec for spec in inputs if spec.name in there or spec.name not in spared]
    checks.names(where, [name for name in found if name in known], demanded)
    if others := [str(name) for name in there if name not in found]:
        note(f"{where}: columns that are no inputs are not read: {', '.join(others[:8])}")
    return found


def picture_reader(
    folder: Path, given: Mapping[str, Any] | None, inputs: Sequence[TensorSpec], note: Note
) -> Pictures:
    """Return how pictures in a table become tensors, by ``preprocess.toml`` in a folder.

    Nothing is read before the first picture is met.
    """
    kept: list[Any] = []

    def tensor(picture: Any, where: str) -> NDArray[Any]:
        if not kept:
            keys = preprocess.read(folder / SETTINGS) if given is None else given
            kept.append(images.settings_for(keys, inputs, note, folder / SETTINGS))
        settings, spec = kept[0]
        return images.tensor(_opened(picture, where), settings, spec)

    return tensor


def block(
    row: Mapping[str, Any], where: str, inputs: Sequence[TensorSpec], tensor: Pictures
) -> NamedArrays:
    """Return one row as a sample; where values lack the batch dimension, they get one of 1.

    Args:
        row: Column name -> a number, text, nested lists, an array or a picture.

    Raises:
        BadData: A value is missing or no array.
    """
    known, columns = checks.by_name(inputs), {}
    for name, value in row.items():
        spec = known.get(name)
        if value is None:
            raise BadData(f"{where}: column '{name}' is empty", fix="leave such rows out")
        kept = isinstance(value, Mapping) and "bytes" in value
        if spec is not None and (kept or hasattr(value, "getexif")):
            columns[name] = Column.of(tensor(value, where))
            continue
        array = checks.as_array(value, where, spec)
        rank = array.ndim + 1 if spec is None or spec.shape is None else len(spec.shape)
        batched = name != "group" and array.ndim + 1 == rank
        columns[name] = Column.of(array[None] if batched else array)
    return NamedArrays(where, columns)


def plain(value: Any) -> Any:
    """Return what an Arrow scalar holds: of a tensor an array, else as Python has it."""
    if hasattr(value, "to_numpy"):
        return np.asarray(value.to_numpy())
    return value.as_py()


def _opened(value: Any, where: str) -> Any:
    """Return a picture; of one that only names a file nothing is opened.

    Raises:
        BadData: It has no bytes of its own, or they are no picture.
    """
    if not isinstance(value, Mapping):
        return value
    try:
        from PIL import Image
    except ImportError:
        raise BadData("reading images needs Pillow", fix="pip install ortune[images]") from None
    if not isinstance(value["bytes"], bytes):
        raise BadData(
            f"{where}: a picture that lies in another file", fix="put its bytes into the table"
        )
    try:
        return Image.open(io.BytesIO(value["bytes"]))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadData(f"{where}: no picture: {error}", fix="leave the row out") from error


PARQUET = frozenset({".parquet", ".pq"})
_ROWS = 64
"""Read at once, of a row group."""
_VALUE = 8
"""Bytes that a value takes at most, before it is one of the input's type."""


def parquet_blocks(
    files: Sequence[Path],
    inputs: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None = None,
    spared: Collection[str] = (),
) -> Iterator[NamedArrays]:
    """Yield one block a row, file by file.

    Args:
        pictures: Keys of ``preprocess.toml`` in the place of those beside the files.

    Raises:
        BadData: pyarrow is not installed, or a file cannot be read or lacks an input.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise BadData(
            "reading Parquet files needs pyarrow", fix="pip install ortune[parquet]"
        ) from None
    needed = [spec for spec in inputs if spec.name not in spared]
    tensor = picture_reader(files[0].parent, pictures, needed, note)
    for path in files:
        with arrays.reading(path):
            file = parquet.ParquetFile(path)
        with file:
            columns = wanted(file.schema_arrow.names, inputs, note, path.name, spared)
            at = 0
            for group in range(file.num_row_groups):
                chunk = file.metadata.row_group(group)
                own = [chunk.column(at) for at in range(chunk.num_columns)]
                own = [one for one in own if one.path_in_schema.partition(".")[0] in columns]
                size = sum(
                    max(one.total_uncompressed_size, _VALUE * one.num_values) for one in own
                )
                sizes.demand(
                    size, f"a row group of {path}", "write the file with smaller row groups"
                )
                with arrays.reading(path):
                    batches = file.iter_batches(_ROWS, [group], columns, use_threads=False)
                for batch in _read(batches, path, arrow.ArrowException):
                    for place in range(batch.num_rows):
                        row = {name: plain(batch[name][place]) for name in columns}
                        yield block(row, f"{path.name} row {at}", inputs, tensor)
                        at += 1


def _read(batches: Iterator[Any], path: Path, failure: type[Exception]) -> Iterator[Any]:
    with arrays.reading(path):
        try:
            yield from batches
        except failure as error:
            raise ValueError(str(error)) from error


PREFIX = "hf:"
_SAVED = ("dataset_dict.json", "state.json")
_SPLIT = re.compile(r"[\w.-]+")


def hub_blocks(
    source: str,
    inputs: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None = None,
    spared: Collection[str] = (),
) -> Iterator[NamedArrays]:
    """Yield one block a row of ``hf:FOLDER[:split]`` or ``hf:NAME[:split]``.

    Raises:
        BadData: ``datasets`` is not installed, there is no such dataset, or several splits and
            none is named.
    """
    try:
        import datasets
    except ImportError:
        raise BadData(
            f"reading {source} needs the package datasets", fix="pip install ortune[datasets]"
        ) from None
    place, split = _parted(source)
    folder = Path(place)
    saved = folder.is_dir() and any((folder / name).is_file() for name in _SAVED)
    try:
        found = datasets.load_from_disk(place) if saved else _cached(datasets, place)
    except Exception as error:
        raise BadData(
            f"cannot read {source}: {user_function.reason(error)}",
            fix="save it with dataset.save_to_disk(FOLDER) and give hf:FOLDER; nothing is fetched",
        ) from error
    table = _split(found, split, source)
    columns = wanted(table.column_names, inputs, note, source, spared)
    size = int(table.data.nbytes) // max(1, len(table))
    sizes.demand(size, f"a row of {source}")
    needed = [spec for spec in inputs if spec.name not in spared]
    tensor = picture_reader(folder if saved else Path(), pictures, needed, note)
    table = table.with_format(None).select_columns(columns)
    for at in range(len(table)):
        try:
            row = table[at]
        except Exception as error:
            raise BadData(
                f"{source} row {at}: {user_function.reason(error)}", fix="leave the row out"
            ) from error
        yield block(row, f"{source} row {at}", inputs, tensor)


def _parted(source: str) -> tuple[str, str]:
    """Return the folder or name, and the split or nothing; a drive's colon is no split's."""
    text = source.removeprefix(PREFIX)
    place, colon, split = text.rpartition(":")
    if colon and len(place) > 1 and _SPLIT.fullmatch(split):
        return place, split
    return text, ""


def _cached(datasets: Any, name: str) -> Any:
    """Open what the package prepared before; it never reaches for the network."""
    offline, config = "HF_HUB_OFFLINE", datasets.config
    before = getattr(config, offline, False)
    setattr(config, offline, True)
    try:
        return datasets.load_dataset(
            name, download_config=datasets.DownloadConfig(local_files_only=True)
        )
    finally:
        setattr(config, offline, before)


def _split(found: Any, split: str, source: str) -> Any:
    """Return the rows of one split.

    Raises:
        BadData: There is none of that name, or several and none is named.
    """
    if not isinstance(found, Mapping):
        own = str(found.split or "")
        if split and split != own:
            raise BadData(f"{source} has no split '{split}'", fix=f"leave ':{split}' out")
        return found
    if not split and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        what = f"has no split '{split}'" if split else f"has {len(found)} splits"
        raise BadData(
            f"{source} {what}: {', '.join(found)}",
            fix=f"write hf:NAME:{next(iter(found), 'test')}",
        )
    return found[split]
