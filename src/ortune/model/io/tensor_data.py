"""What a tensor of a file must hold: as much as its type and shape say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ortune.core.wording import count

MOST_DENSE = 1 << 28
"""Bytes that a sparse tensor may take once it is dense; its file says only the shape."""

_MOST_DIMS = 64
"""As many dimensions as NumPy arrays have at most."""


class Invalid(Exception):
    """The model breaks a rule of ONNX; the text says which, and where.

    Attributes:
        fix: What to do.
    """

    def __init__(self, text: str, fix: str = "export it again") -> None:
        super().__init__(text)
        self.fix = fix


def demand(tensor: onnx.TensorProto) -> None:
    """Refuse a tensor of another length than type and shape say.

    What lies in files is checked for its place alone, and for its length once they are mapped.

    Raises:
        Invalid: Something does not hold.
    """
    label = f"tensor '{tensor.name}'"
    dims = list(tensor.dims)
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        dtype = ir.DataType.UNDEFINED
    if dtype == ir.DataType.UNDEFINED:
        raise Invalid(f"{label} is of data type {tensor.data_type}, which there is not")
    if len(dims) > _MOST_DIMS:
        raise Invalid(f"{label} has {count(len(dims), 'dimension')}")
    if any(dim < 0 for dim in dims) or math.prod(d or 1 for d in dims) >= 1 << 59:
        raise Invalid(f"{label} has the shape {dims}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not (
                entry.value.isascii() and entry.value.isdigit() and len(entry.value) < 20
            ):
                raise Invalid(f"{label} has the {entry.key} '{entry.value[:40]}' in its file")
        return
    held, wanted, unit = _held(tensor, dtype, math.prod(dims))
    if held != wanted:
        raise Invalid(
            f"{label} holds {held} {unit} where its shape {dims} of {dtype.name} makes {wanted}"
        )


def _held(tensor: onnx.TensorProto, dtype: ir.DataType, size: int) -> tuple[int, int, str]:
    """Return how much a tensor holds, how much it should, and of what."""
    if tensor.HasField("raw_data") and dtype != ir.DataType.STRING:
        return len(tensor.raw_data), math.ceil(size * dtype.bitwidth / 8), "bytes"
    field = _FIELDS.get(dtype, "int32_data")
    packed = _PACKED.get(dtype, 1)
    wanted = -(-size // packed) * (2 if dtype in _COMPLEX else 1)
    return len(getattr(tensor, field)), wanted, "values" if packed == 1 else "bytes"


_PACKED = {
    ir.DataType.INT4: 2,
    ir.DataType.UINT4: 2,
    ir.DataType.FLOAT4E2M1: 2,
    ir.DataType.INT2: 4,
    ir.DataType.UINT2: 4,
}
"""Elements in a byte."""
_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""Where a tensor keeps its values when not as raw bytes; all others in int32_data."""


def sparse(tensor: onnx.SparseTensorProto) -> None:
    """Refuse a sparse tensor that cannot be made dense.

    Raises:
        Invalid: It is too large for that, its parts are no tensors, or lie in other files.
    """
    dims: Sequence[int] = list(tensor.dims)
    for part in (tensor.values, tensor.indices):
        if part.data_location == onnx.TensorProto.EXTERNAL:
            raise Invalid(f"sparse tensor '{tensor.values.name}' lies in a file")
        demand(part)
    dtype = ir.DataType(tensor.values.data_type)
    if dtype == ir.DataType.STRING or tensor.indices.data_type != onnx.TensorProto.INT64:
        raise Invalid(f"sparse tensor '{tensor.values.name}' has strings, or no int64 indices")
    if any(dim < 0 for dim in dims) or math.prod(dims) * dtype.bitwidth > 8 * MOST_DENSE:
        raise Invalid(f"sparse tensor '{tensor.values.name}' has the shape {dims}")
