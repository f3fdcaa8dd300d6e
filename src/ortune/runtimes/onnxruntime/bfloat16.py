"""Runs with tensors of bfloat16, which onnxruntime's own ``run`` knows no NumPy type for."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAME = "tensor(bfloat16)"
_ELEMENT = 16
"""ONNX' number of the type."""


def run(
    session: Any, names: Sequence[str], feeds: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]]:
    """Run once and return the outputs of these names.

    Args:
        session: onnxruntime's.
    """
    given = {name: _value(array) for name, array in feeds.items()}
    return [_array(value) for value in session.run_with_ort_values(names, given)]


def _value(array: NDArray[Any]) -> Any:
    from onnxruntime import OrtValue

    whole = np.ascontiguousarray(array)
    if array.dtype.name != "bfloat16":
        return OrtValue.ortvalue_from_numpy(whole)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(whole.view(np.uint16), _ELEMENT)


def _array(value: Any) -> NDArray[Any]:
    """Return a copy: the memory is the value's."""
    if value.data_type() != NAME:
        found: NDArray[Any] = value.numpy()
        return found
    import ml_dtypes

    shape = value.shape()
    made = np.empty(shape, ml_dtypes.bfloat16)
    ctypes.memmove(made.ctypes.data, value.data_ptr(), made.nbytes)
    return made
