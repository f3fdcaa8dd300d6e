"""The protocol's datatypes and NumPy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ortune.protocol.status import Refused, Status

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


def datatype(dtype: np.dtype[Any] | str) -> str:
    """Return the protocol's name of a dtype, given as NumPy or `TensorSpec` spell it.

    Raises:
        Refused: It has none, as float8, int4 and sequences have not.
    """
    name = dtype if isinstance(dtype, str) else dtype.name
    try:
        return _NAMES[name]
    except KeyError:
        if isinstance(dtype, np.dtype) and dtype.kind in "SUT":
            return "BYTES"
        raise Refused(
            f"the protocol has no datatype for {name or 'an unknown type'}",
            Status.UNSUPPORTED,
            "cast the input or output to a type that it has, such as float32",
        ) from None


def known(dtype: str) -> bool:
    """Whether the protocol has a datatype for what `TensorSpec` spells so."""
    return dtype in _NAMES


def dtype(datatype: str) -> np.dtype[Any]:
    """Return the dtype of arrays of a datatype: object for BYTES, ml_dtypes' for BF16.

    Raises:
        Refused: There is no such datatype.
    """
    try:
        return _DTYPES[datatype]
    except (KeyError, TypeError):
        raise Refused(f"invalid datatype '{datatype}'") from None


def json_unfit(name: str, datatype: str) -> Refused:
    """Return the refusal to write an output as JSON."""
    return Refused(
        f"sending {datatype} data via JSON is not supported. Please use the binary data format "
        f"for output {name}"
    )
