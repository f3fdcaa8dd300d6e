"""Named arrays of one file, line or dict, not in memory before they are read."""

import io
import itertools
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ortune.core import regular_file
from ortune.core.errors import BadData
from ortune.core.plugins import user_function
from ortune.core.wording import format_count
from ortune.data import sizes

_FAILURES = (
    *(OSError, ValueError, EOFError, RuntimeError, OverflowError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, SyntaxError, TypeError, KeyError),
)
_EMPTY_ROWS = 2**20

_ODD_HEADERS = (TokenError, SyntaxError, TypeError, RecursionError, MemoryError, OverflowError)
"""What NumPy raises beside ValueError of a header that is no Python literal, or too deep."""
_ATTEMPTS = 10  # at the header of an array


@dataclass(frozen=True)
class Column:
    """An array that may still be in its file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], NDArray[Any]]  # returns all of it
    # Returns its rows one by one from a number on, each with a leading dimension of 1.
    rows: Callable[[int], Iterator[NDArray[Any]]]

    @classmethod
    def from_array(cls, array: NDArray[Any]) -> Self:
        """Wrap an array in memory, or a mapped one."""
        return cls(
            array.shape,
            array.dtype,
            lambda: array,
            lambda first: (array[at : at + 1] for at in range(first, len(array))),
        )

    def cut(self, rows: range) -> Self:
        """Return some of its rows that follow each other."""
        return replace(
            self,
            shape=(len(rows), *self.shape[1:]),
            read=lambda: self.read()[rows.start : rows.stop],
            rows=lambda first: itertools.islice(self.rows(rows.start + first), len(rows) - first),
        )


@dataclass(frozen=True)
class NamedArrays:
    """What is split into samples, or is one."""

    where: str  # the file, line or item, for messages
    columns: Mapping[str, Column]  # by array name; labels and groups included
    # Number of its first row in the file; None where it is the whole file.
    first: int | None = None

    def cut(self, rows: range) -> Self:
        """Return some of the rows that follow each other, of every array."""
        columns = {name: column.cut(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, first=rows.start)


def open_npz(path: Path) -> NamedArrays:
    """Open a .npz; rows are read one by one, compressed or not. Nothing is unpickled.

    Raises:
        BadData: It cannot be read.
    """
    with (
        translate_read_errors(path),
        regular_file.open_regular(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        members = [name for name in archive.namelist() if name.endswith(".npy")]
        columns = {
            name.removesuffix(".npy"): _open_member(path, archive, name) for name in members
        }
    if not columns:
        raise BadData(f"{path} holds no arrays", fix="save it with numpy.savez")
    return NamedArrays(path.name, columns)


def write_npz(path: Path | IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays that may have any name; NumPy's own `savez` reserves some."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def map_npy(path: Path) -> Column:
    """Map a .npy file. Raises BadData: it cannot be read."""
    with translate_read_errors(path):
        with regular_file.open_regular(path) as file:
            shape, fortran, dtype = _read_header(file)
            begin = file.tell()
            _require_complete(path.name, shape, dtype, path.stat().st_size - begin)
        if math.prod(shape) * dtype.itemsize == 0:  # it cannot be mapped
            return Column.from_array(np.empty(shape, dtype))
        order: Literal["F", "C"] = "F" if fortran else "C"
        return Column.from_array(np.memmap(path, dtype, "r", begin, shape, order))


@contextmanager
def translate_read_errors(
    path: Path, fix: str = "write the file again, as plain arrays without Python objects"
) -> Iterator[None]:
    """Turn what goes wrong with a file into BadData."""
    try:
        yield
    except _FAILURES as error:
        if isinstance(error, FileNotFoundError) and error.filename == str(path):
            raise BadData(f"{path}: no such file or directory", fix="check the path") from error
        raise BadData(
            f"cannot read {path}: {user_function.describe_error(error)}", fix=fix
        ) from error


@contextmanager
def open_text(
    path: Path, encoding: str = "utf-8-sig", newline: str | None = ""
) -> Iterator[IO[str]]:
    """Open a file of text, and turn what goes wrong with it into BadData."""
    with translate_read_errors(path):
        source = regular_file.open_regular(path)
        with io.TextIOWrapper(source, encoding=encoding, newline=newline) as file:
            yield file


def _open_member(path: Path, archive: zipfile.ZipFile, name: str) -> Column:
    with archive.open(name) as file:
        shape, fortran, dtype = _read_header(file)
        _require_complete(name, shape, dtype, archive.getinfo(name).file_size - file.tell())

    def read() -> NDArray[Any]:
        sizes.require_memory(sizes.array_bytes(shape, dtype), f"'{name}' in {path}")
        with (
            translate_read_errors(path),
            regular_file.open_regular(path) as source,
            zipfile.ZipFile(source) as archive,
            archive.open(name) as file,
        ):
            read_whole = partial(np.lib.format.read_array, allow_pickle=False)
            values: NDArray[Any] = _parse_array(file, read_whole)
            return values

    def rows(first: int) -> Iterator[NDArray[Any]]:
        with (
            translate_read_errors(path),
            regular_file.open_regular(path) as source,
            zipfile.ZipFile(source) as archive,
            archive.open(name) as member,
        ):
            _read_header(member)
            row_shape = (1, *shape[1:])
            size = sizes.array_bytes(row_shape, dtype)
            file: IO[bytes] = member
            if first and archive.getinfo(name).compress_type == zipfile.ZIP_STORED:
                file = _seek_stored(source, archive.getinfo(name), member.tell() + first * size)
            else:
                member.seek(first * size, os.SEEK_CUR)
            for _ in range(first, shape[0]):
                data = file.read(size)
                if len(data) < size:
                    raise EOFError(f"{name} ends early")
                yield np.frombuffer(data, dtype, count=math.prod(row_shape)).reshape(row_shape)

    if fortran or dtype.itemsize == 0:
        return Column(shape, dtype, read, lambda first: Column.from_array(read()).rows(first))
    return Column(shape, dtype, read, rows)


def _seek_stored(source: IO[bytes], member: zipfile.ZipInfo, place: int) -> IO[bytes]:
    """Return the zip itself at a place in a member; zipfile would read all that is before it."""
    source.seek(member.header_offset + 26)  # the lengths of what stands between it and the member
    name_length, extra_length = struct.unpack("<HH", source.read(4))
    source.seek(member.header_offset + 30 + name_length + extra_length + place)
    return source


def _require_complete(
    name: str, shape: Sequence[int], dtype: np.dtype[Any], available_bytes: int
) -> None:
    """Check a header against the bytes behind it, and rows without any, else raise ValueError."""
    if (expected_bytes := sizes.array_bytes(shape, dtype)) > available_bytes:
        raise ValueError(
            f"the header of {name} promises {expected_bytes} bytes, and there are "
            f"{available_bytes}"
        )
    if not expected_bytes and shape and shape[0] > _EMPTY_ROWS:
        raise ValueError(f"{name} has {format_count(shape[0], 'row')} and no values")


def _parse_array(file: IO[bytes], parse: Callable[[IO[bytes]], Any]) -> Any:
    """Return what NumPy reads of an array in a file.

    Its header is a Python literal, and CPython 3.11 fails on one in a thousand with SystemError
    where several threads read literals at once (python/cpython#106905): it is read again.
    """
    begin = file.tell()
    for _ in range(_ATTEMPTS - 1):
        with suppress(SystemError):
            return parse(file)
        file.seek(begin)
    return parse(file)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"array format {version} is not supported")
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = _parse_array(file, read)
    except _ODD_HEADERS as error:
        raise ValueError("its header cannot be read") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    if any(isinstance(dim, bool) or dim < 0 for dim in shape):
        raise ValueError(f"its header has the shape {shape}")
    return shape, fortran, dtype
