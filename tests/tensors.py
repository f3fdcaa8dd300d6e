"""The datatypes of the Open Inference Protocol, and arrays of each with what is odd in them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

TYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16",
    "FP32": "float", "FP64": "double", "BF16": "bfloat16", "BYTES": "string",
}  # fmt: skip
"""Datatype of the protocol -> type in ONNX text."""


def values(datatype: str, rows: int) -> NDArray[Any]:
    """Return an input [rows, 3] with the ends of the type's range in it."""
    rng = np.random.default_rng(rows)
    if datatype == "BYTES":
        odd = ["", "\x00", "grüße", "a" * 300]
        text = [f"{odd[k % 4]}{k}".encode() for k in range(3 * rows)]
        return np.array(text, object).reshape(rows, 3)
    if datatype == "BOOL":
        return rng.random((rows, 3)) < 0.5
    if datatype.startswith(("FP", "BF")):
        kind = ml_dtypes.bfloat16 if datatype == "BF16" else f"float{datatype[2:]}"
        return (1e3 * rng.standard_normal((rows, 3))).astype(kind)
    ends = np.iinfo(datatype.lower())
    found = rng.integers(ends.min, ends.max, (rows, 3), datatype.lower(), endpoint=True)
    found[0, :2] = ends.min, ends.max
    return found
