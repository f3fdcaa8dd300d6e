"""Tensors as bytes: little-endian, row-major; BYTES elements behind their lengths."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.protocol.datatypes import dtype
from ortune.protocol.status import Refused

MOST_TENSORS = 4096
"""Inputs of one request, and outputs that it asks for."""
_MOST_DIMS = 32
_MOST_ELEMENTS = 1 << 56
"""Where a dimension is 0: NumPy multiplies the others all the same."""
_LENGTH = struct.Struct("<I")


def elements(name: str, shape: Sequence[Any]) -> int:
    """Return the number of elements of an input's shape.

    Raises:
        Refused: It is no shape, or none that fits into memory.
    """
    if len(shape) > _MOST_DIMS:
        found = wording.count(len(shape), "dimension")
        raise Refused(f"input '{name}' has {found}, at most {_MOST_DIMS} may be")
    count = all_but_zero = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise Refused(
                f"Unable to parse 'shape' of input '{name}': a dimension is no whole number from 0"
            )
        count *= size
        all_but_zero *= size or 1
    if all_but_zero > _MOST_ELEMENTS:
        raise Refused(f"input '{name}' has more elements than can be: {list(shape)}")
    return count


def from_raw(
    name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview, model: str = ""
) -> NDArray[Any]:
    """Read an input.

    Args:
        name: For messages, as `model`.
        data: Of this input alone. What lies aligned in it is not copied: some kernels fall over
            numbers that do not.

    Raises:
        Refused: Datatype, shape and data do not fit each other.
    """
    kind, count, shape = dtype(datatype), elements(name, shape), tuple(shape)
    if kind.kind == "O":
        return _strings(name, count, data, model).reshape(shape)
    expected = count * kind.itemsize
    if expected != len(data):
        raise Refused(
            f"input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {expected}, got {len(data)}"
        )
    if not expected:
        return np.empty(shape, kind)
    if kind.kind == "b":
        return np.not_equal(np.frombuffer(data, np.uint8), 0).reshape(shape)
    array: NDArray[Any] = np.frombuffer(data, kind)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def to_raw(array: NDArray[Any]) -> bytes | memoryview:
    """Return the bytes of an output; of numbers that lie contiguous a view of them."""
    if array.dtype.kind in "OSUT":
        return _joined(array.ravel().tolist())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def decoded(array: NDArray[Any], what: str, fix: str) -> list[str]:
    """Return the elements of a BYTES tensor in a row, as text.

    Args:
        what: Says whose they are, such as "input 'x'".
        fix: What to do where one is no UTF-8.

    Raises:
        Refused: One is no UTF-8.
    """
    try:
        return [
            one.decode() if isinstance(one, bytes) else str(one) for one in array.ravel().tolist()
        ]
    except UnicodeDecodeError:
        raise Refused(f"{what} holds bytes that are no UTF-8", fix=fix) from None


def _joined(items: Iterable[bytes | str]) -> bytes:
    parts = []
    for item in items:
        data = item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogateescape")
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def _strings(name: str, count: int, data: bytes | memoryview, model: str) -> NDArray[Any]:
    """Read elements of BYTES; as many as the data can hold are made at most."""
    found: list[bytes] = []
    at, end = 0, len(data)
    while at < end and len(found) <= count:
        if end - at < _LENGTH.size:
            raise _cut(name, model)
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if size > end - at:
            raise _cut(name, model)
        found.append(bytes(data[at : at + size]))
        at += size
    if len(found) != count:
        got = f"more than {count}" if len(found) > count else str(len(found))
        raise Refused(
            f"unexpected number of string elements {got} for inference input '{name}' "
            f"for model '{model}', expecting {count}"
        )
    return np.array(found, object)


def _cut(name: str, model: str) -> Refused:
    return Refused(
        f"element byte size indicator exceeds the end of the buffer for inference input '{name}' "
        f"for model '{model}'"
    )
