"""Tables in Parquet files: a row is a sample, its columns are named as the inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data import arrays, sizes
from ortune.data.arrays import NamedArrays
from ortune.data.checks import Note
from ortune.data.formats import rows

SUFFIXES = frozenset({".parquet", ".pq"})
_ROWS = 64
"""Read at once, of a row group."""
_VALUE = 8
"""Bytes that a value takes at most, before it is one of the input's type."""


def blocks(
    files: Sequence[Path],
    inputs: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None = None,
    spared: Collection[str] = (),
) -> Iterator[NamedArrays]:
    """Yield one block a row, file by file.

    Args:
        pictures: Keys of ``preprocess.toml`` in the place of those beside the files.
        spared: Inputs that may be left out.

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
    tensor = rows.pictures(files[0].parent, pictures, needed, note)
    for path in files:
        with arrays.reading(path):
            file = parquet.ParquetFile(path)
        with file:
            columns = rows.wanted(file.schema_arrow.names, inputs, note, path.name, spared)
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
                        row = {name: rows.plain(batch[name][place]) for name in columns}
                        yield rows.block(row, f"{path.name} row {at}", inputs, tensor)
                        at += 1


def _read(batches: Iterator[Any], path: Path, failure: type[Exception]) -> Iterator[Any]:
    with arrays.reading(path):
        try:
            yield from batches
        except failure as error:
            raise ValueError(str(error)) from error
