"""The protocol's datatypes, tensors as bytes, and classes in the place of scores."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused

_NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    "object": "BYTES",
    "str": "BYTES",
}
"""NumPy's or ml_dtypes' name, or `TensorSpec`'s -> the protocol's."""
_DTYPES: dict[str, np.dtype[Any]] = {
    datatype: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    for name, datatype in _NAMES.items()
    if name != "str"
}
RAW_ONLY = frozenset({"FP16", "BF16"})
"""What JSON cannot carry, as the protocol says."""


def find_datatype(dtype: np.dtype[Any] | str) -> str:
    """Return the protocol's name of a dtype; RequestRefused where it has none, as float8 has."""
    name = dtype if isinstance(dtype, str) else dtype.name
    try:
        return _NAMES[name]
    except KeyError:
        if isinstance(dtype, np.dtype) and dtype.kind in "SUT":
            return "BYTES"
        raise RequestRefused(
            f"the protocol has no datatype for {name or 'an unknown type'}",
            RefusalKind.UNSUPPORTED,
            "cast the input or output to a type that it has, such as float32",
        ) from None


def has_datatype(dtype: str) -> bool:
    """Whether the protocol has a datatype for what `TensorSpec` spells so."""
    return dtype in _NAMES


def find_dtype(datatype: str) -> np.dtype[Any]:
    """Return a datatype's dtype (BYTES: object, BF16: ml_dtypes'); RequestRefused without one."""
    try:
        return _DTYPES[datatype]
    except (KeyError, TypeError):
        raise RequestRefused(f"invalid datatype '{datatype}'") from None


def make_json_refusal(name: str, datatype: str) -> RequestRefused:
    """Return the refusal to write an output as JSON."""
    return RequestRefused(
        f"sending {datatype} data via JSON is not supported. Please use the binary data format "
        f"for output {name}"
    )


MOST_TENSORS = 4096
"""Inputs of one request, and outputs that it asks for."""
_MOST_DIMS = 32
_MOST_ELEMENTS = 1 << 56
"""Where a dimension is 0: NumPy multiplies the others all the same."""
_LENGTH = struct.Struct("<I")


def count_elements(name: str, shape: Sequence[Any]) -> int:
    """Return an input's elements; RequestRefused where its shape is none, or fits no memory."""
    if len(shape) > _MOST_DIMS:
        dimensions = wording.format_count(len(shape), "dimension")
        raise RequestRefused(f"input '{name}' has {dimensions}, at most {_MOST_DIMS} may be")
    count = all_but_zero = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise RequestRefused(
                f"Unable to parse 'shape' of input '{name}': a dimension is no whole number from 0"
            )
        count *= size
        all_but_zero *= size or 1
    if all_but_zero > _MOST_ELEMENTS:
        raise RequestRefused(f"input '{name}' has more elements than can be: {list(shape)}")
    return count


def from_raw(
    name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview, model: str = ""
) -> NDArray[Any]:
    """Read an input, named in messages as its model is, from data of it alone.

    What lies aligned in the data is not copied: some kernels fall over numbers that do not. Raises
    RequestRefused: datatype, shape and data do not fit each other.
    """
    kind, count, shape = find_dtype(datatype), count_elements(name, shape), tuple(shape)
    if kind.kind == "O":
        # As many elements as the data can hold are made at most.
        strings: list[bytes] = []
        at, end = 0, len(data)
        while at < end and len(strings) <= count:
            if end - at < _LENGTH.size:
                raise _make_truncation_error(name, model)
            (size,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if size > end - at:
                raise _make_truncation_error(name, model)
            strings.append(bytes(data[at : at + size]))
            at += size
        if len(strings) != count:
            got = f"more than {count}" if len(strings) > count else str(len(strings))
            raise RequestRefused(
                f"unexpected number of string elements {got} for inference input '{name}' "
                f"for model '{model}', expecting {count}"
            )
        return np.array(strings, object).reshape(shape)
    expected = count * kind.itemsize
    if expected != len(data):
        raise RequestRefused(
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
        items = array.ravel().tolist()
        parts = []
        for item in items:
            data = (
                item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogateescape")
            )
            parts += [_LENGTH.pack(len(data)), data]
        return b"".join(parts)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def decode_texts(array: NDArray[Any], subject: str, fix: str) -> list[str]:
    """Return a BYTES tensor's elements in a row, as text.

    Raises RequestRefused where one is no UTF-8: of `subject`, such as "input 'x'", with `fix`.
    """
    try:
        return [
            element.decode() if isinstance(element, bytes) else str(element)
            for element in array.ravel().tolist()
        ]
    except UnicodeDecodeError:
        raise RequestRefused(f"{subject} holds bytes that are no UTF-8", fix=fix) from None


def _make_truncation_error(name: str, model: str) -> RequestRefused:
    return RequestRefused(
        f"element byte size indicator exceeds the end of the buffer for inference input '{name}' "
        f"for model '{model}'"
    )


def classify(array: NDArray[Any], classes: int, *, batched: bool = True) -> NDArray[Any]:
    """Return ``score:index`` of the highest scores, as ``bytes``: [rows, classes], or [classes].

    Of equal scores the lower index comes first; NaN comes last. A row of the first dimension each;
    without `batched` all are one row. Raises RequestRefused: the output is no numbers.
    """
    kind = find_datatype(array.dtype)
    if kind in ("BYTES", "BOOL"):
        raise RequestRefused(
            f"class result not available for output due to unsupported type '{kind}'"
        )
    batched = batched and array.ndim > 0
    rows = len(array) if batched else 1
    width = math.prod(array.shape[1:] if batched else array.shape)
    scores = array.reshape(rows, width)
    if kind[0] in "FB":
        scores = scores.astype(np.float64)
    top = np.empty((rows, min(classes, width)), object)
    for row, values in zip(top, scores, strict=True):
        real = values.dtype.kind == "f"
        ranked = np.where(np.isnan(values), -np.inf, values) if real else values
        order = width - 1 - np.argsort(ranked[::-1], kind="stable")[::-1]
        # A score as C++'s ``std::to_string`` writes it: six decimals.
        row[:] = [
            f"{f'{values[index]:f}' if real else values[index]}:{index}".encode()
            for index in order[: min(classes, width)]
        ]
    return top if batched else top[0]
