"""Rows of tables as samples: columns named as the inputs, label and group beside them."""

import io
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess, regular_file
from ortune.core.errors import BadData
from ortune.core.plugins import user_function
from ortune.core.preprocess import SETTINGS
from ortune.data import arrays, checks, images, sizes
from ortune.data import sentences as texts
from ortune.data.arrays import Column, NamedArrays
from ortune.data.reading import Reading

EXTRA_COLUMNS = ("label", "group")
Pictures: TypeAlias = Callable[[Any, str], NDArray[Any]]
"""From a picture and where it is from to the tensor of its input."""


def select_columns(available: Collection[str], where: str, reading: Reading) -> list[str]:
    """Return the columns that are read: the inputs or texts, label and group; others are noted.

    Raises:
        BadData: An input is missing.
    """
    specs, optional = reading.specs, reading.optional
    if reading.sentences is not None and texts.TEXT in available:
        columns = [name for name in available if name in texts.COLUMNS]
    else:
        columns = [name for name in available if name in specs or name in EXTRA_COLUMNS]
        named = [name for name in columns if name in specs]
        checks.check_input_names(where, named, reading.inputs, optional)
    if unused := [str(name) for name in available if name not in columns]:
        reading.note(f"{where}: columns that are not inputs are ignored: {', '.join(unused[:8])}")
    return columns


def make_picture_reader(folder: Path, reading: Reading) -> Pictures:
    """Return how pictures in a table become tensors, by ``preprocess.toml`` in a folder.

    Nothing is read before the first picture is met.
    """
    loaded: list[Any] = []

    def tensor(picture: Any, where: str) -> NDArray[Any]:
        if not loaded:
            keys, place = reading.pictures, folder / SETTINGS
            keys = preprocess.read_preprocess_keys(place) if keys is None else keys
            loaded.append(images.settings_for(keys, reading.needed, reading.note, place))
        settings, spec = loaded[0]
        return images.preprocess_picture(_open_picture(picture, where), settings, spec)

    return tensor


def make_row_blocks(
    row: Mapping[str, Any], where: str, reading: Reading, tensor: Pictures
) -> Iterator[NamedArrays]:
    """Yield one row as a sample; where values lack the batch dimension, they get one of 1.

    Args:
        row: Column name -> a number, text, nested lists, an array or a picture.

    Raises:
        BadData: A value is missing or no array.
    """
    if reading.sentences is not None and texts.TEXT in row:
        yield from reading.sentences.make_blocks(row, where)
        return
    specs, columns = reading.specs, {}
    for name, value in row.items():
        spec = specs.get(name)
        if value is None:
            raise BadData(f"{where}: column '{name}' is empty", fix="leave such rows out")
        is_encoded = isinstance(value, Mapping) and "bytes" in value
        if spec is not None and (is_encoded or hasattr(value, "getexif")):
            columns[name] = Column.from_array(tensor(value, where))
            continue
        array = checks.as_array(value, where, spec)
        rank = array.ndim + 1 if spec is None or spec.shape is None else len(spec.shape)
        batched = name != "group" and array.ndim + 1 == rank
        columns[name] = Column.from_array(array[None] if batched else array)
    yield NamedArrays(where, columns)


def convert_arrow_scalar(value: Any) -> Any:
    """Return what an Arrow scalar holds: of a tensor an array, else as Python has it."""
    if hasattr(value, "to_numpy"):
        return np.asarray(value.to_numpy())
    return value.as_py()


def _open_picture(value: Any, where: str) -> Any:
    """Return a picture of bytes, else raise BadData: one that only names a file is not opened."""
    if not isinstance(value, Mapping):
        return value
    try:
        from PIL import Image
    except ImportError:
        raise BadData("reading images needs Pillow", fix="pip install pillow") from None
    if not isinstance(value["bytes"], bytes):
        raise BadData(
            f"{where}: a picture that lies in another file", fix="put its bytes into the table"
        )
    try:
        return Image.open(io.BytesIO(value["bytes"]), formats=images.FORMATS)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadData(f"{where}: no picture: {error}", fix="leave the row out") from error


PARQUET = frozenset({".parquet", ".pq"})
_ROWS = 64
"""Read at once, of a row group."""
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
"""Bytes of a value as it is stored: a run of equal ones takes none of them in the file."""
_VALUE = 8
"""Bytes that a value takes at most, before it is one of the input's type."""


def read_parquet_blocks(
    files: Sequence[Path], reading: Reading, records: range | None = None
) -> Iterator[NamedArrays]:
    """Yield one block a row, file by file.

    Args:
        records: Rows that are read of each file; all without it.

    Raises:
        BadData: pyarrow is not installed, or a file cannot be read or lacks an input.
    """
    arrow, parquet = _import_parquet()
    tensor = make_picture_reader(files[0].parent, reading)
    packed = unpacked = 0
    for path in files:
        with arrays.translate_read_errors(path):
            source = regular_file.open_regular(path)
            file = parquet.ParquetFile(source)
        with source, file, arrays.translate_read_errors(path):  # its metadata are bytes too
            packed += path.stat().st_size
            unpacked += sum(
                max(
                    column.total_uncompressed_size,
                    _WIDTHS.get(column.physical_type, 1) * column.num_values,
                )
                for group in map(file.metadata.row_group, range(file.num_row_groups))
                for column in map(group.column, range(group.num_columns))
            )
            regular_file.require_unpacked(unpacked, packed, path)
            names = file.schema_arrow.names
            columns = select_columns(names, path.name, reading)
            at = 0
            first, stop = (records.start, records.stop) if records else (0, math.inf)
            for group in range(file.num_row_groups):
                chunk = file.metadata.row_group(group)
                if at + chunk.num_rows <= first or at >= stop:
                    at += chunk.num_rows
                    continue
                size = sum(
                    max(column.total_uncompressed_size, _VALUE * column.num_values)
                    for column in map(chunk.column, range(chunk.num_columns))
                    if column.path_in_schema.partition(".")[0] in columns
                )
                sizes.require_memory(
                    size, f"a row group of {path}", "write the file with smaller row groups"
                )
                batches = file.iter_batches(_ROWS, [group], columns, use_threads=False)
                for batch in _read_batches(batches, arrow.ArrowException):
                    for place in range(batch.num_rows):
                        if first <= at < stop:
                            row = {n: convert_arrow_scalar(batch[n][place]) for n in columns}
                            where = f"{path.name} row {at}"
                            yield from make_row_blocks(row, where, reading, tensor)
                        at += 1


def count_parquet_rows(path: Path) -> int:
    """Return the rows of a file. Raises BadData: no pyarrow, or it cannot be read."""
    _, parquet = _import_parquet()
    with arrays.translate_read_errors(path), regular_file.open_regular(path) as source:
        return int(parquet.ParquetFile(source).metadata.num_rows)


def _import_parquet() -> tuple[Any, Any]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise BadData("reading Parquet files needs pyarrow", fix="pip install pyarrow") from None
    return arrow, parquet


def _read_batches(batches: Iterator[Any], failure: type[Exception]) -> Iterator[Any]:
    try:
        yield from batches
    except failure as error:
        raise ValueError(str(error)) from error


PREFIX = "hf:"
_SAVED = ("dataset_dict.json", "state.json")
_SPLIT = re.compile(r"[\w.-]+")


def read_hub_blocks(source: str, reading: Reading) -> Iterator[NamedArrays]:
    """Yield one block a row of ``hf:FOLDER[:split]`` or ``hf:NAME[:split]``.

    Raises:
        BadData: ``datasets`` is not installed, there is no such dataset, or several splits and
            none is named.
    """
    try:
        import datasets
    except ImportError:
        raise BadData(
            f"reading {source} needs the package datasets", fix="pip install 'datasets>=4.0'"
        ) from None
    place, split = _parse_source(source)
    folder = Path(place)
    saved = folder.is_dir() and any((folder / name).is_file() for name in _SAVED)
    try:
        dataset = (
            datasets.load_from_disk(place) if saved else _load_cached_dataset(datasets, place)
        )
    except Exception as error:
        raise BadData(
            f"cannot read {source}: {user_function.describe_error(error)}",
            fix="save it with dataset.save_to_disk(FOLDER) and give hf:FOLDER; nothing is fetched",
        ) from error
    if not isinstance(dataset, Mapping):
        split_name = str(dataset.split or "")
        if split and split != split_name:
            raise BadData(f"{source} has no split '{split}'", fix=f"leave ':{split}' out")
        table = dataset
    elif not split and len(dataset) == 1:
        table = next(iter(dataset.values()))
    else:
        if split not in dataset:
            problem = f"has no split '{split}'" if split else f"has {len(dataset)} splits"
            raise BadData(
                f"{source} {problem}: {', '.join(dataset)}",
                fix=f"write {PREFIX}{_parse_source(source)[0]}:{next(iter(dataset), 'test')}",
            )
        table = dataset[split]
    columns = select_columns(table.column_names, source, reading)
    size = int(table.data.nbytes) // max(1, len(table))
    sizes.require_memory(size, f"a row of {source}")
    tensor = make_picture_reader(folder if saved else Path(), reading)
    table = table.with_format(None).select_columns(columns)
    for name, feature in table.features.items():
        if isinstance(feature, (datasets.Image, datasets.Audio)):  # its readers take any format
            table = table.cast_column(name, type(feature)(decode=False))
    for at in range(len(table)):
        try:
            row = {name: _read_linked(value) for name, value in table[at].items()}
        except Exception as error:
            raise BadData(
                f"{source} row {at}: {user_function.describe_error(error)}",
                fix="leave the row out",
            ) from error
        yield from make_row_blocks(row, f"{source} row {at}", reading, tensor)


def _read_linked(value: Any) -> Any:
    """Put the bytes of a local file into a picture of a dataset that names it alone."""
    if isinstance(value, Mapping) and value.get("bytes", b"") is None and value.get("path"):
        return {**value, "bytes": regular_file.read_bytes(value["path"])}
    return value


def _parse_source(source: str) -> tuple[str, str]:
    """Return the folder or name, and the split or nothing; a drive's colon is no split's."""
    text = source.removeprefix(PREFIX)
    place, colon, split = text.rpartition(":")
    if colon and len(place) > 1 and _SPLIT.fullmatch(split):
        return place, split
    return text, ""


def _load_cached_dataset(datasets: Any, name: str) -> Any:
    """Open what the package prepared before; it never reaches for the network."""
    offline, config = "HF_HUB_OFFLINE", datasets.config
    before = getattr(config, offline, False)
    setattr(config, offline, True)
    try:
        local = datasets.DownloadConfig(local_files_only=True)
        return datasets.load_dataset(name, download_config=local)
    finally:
        setattr(config, offline, before)
