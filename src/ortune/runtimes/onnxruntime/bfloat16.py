"""Runs of models with bfloat16 tensors, which onnxruntime's own `run` does not take."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BackendMissing
from ortune.core.session import Tensors

Run: TypeAlias = Callable[[Sequence[str], Tensors], list[NDArray[Any]]]

_TYPE, _ONNX_TYPE = "tensor(bfloat16)", 16
"""As onnxruntime names it; the number of ``TensorProto.BFLOAT16``."""


def runner(session: Any) -> Run | None:
    """Return what runs a session through its own values; None where its `run` does.

    NumPy has no bfloat16: arrays of ml_dtypes' are handed over, and taken, as they lie in memory.
    """
    values = (*session.get_inputs(), *session.get_outputs())
    return partial(_run, session) if any(one.type == _TYPE for one in values) else None


def _run(session: Any, names: Sequence[str], feeds: Tensors) -> list[NDArray[Any]]:
    kept = {name: np.require(array, requirements="C") for name, array in feeds.items()}
    given = {name: _value(array) for name, array in kept.items()}  # views: `kept` outlives the run
    return [_array(one) for one in session.run_with_ort_values(list(names), given)]


def _value(array: NDArray[Any]) -> Any:
    from onnxruntime import OrtValue

    if array.dtype.name != "bfloat16":
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_TYPE)


def _array(value: Any) -> NDArray[Any]:
    if value.data_type() != _TYPE:
        found: NDArray[Any] = value.numpy()
        return found
    shape = value.shape()
    size = 2 * math.prod(shape)
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(data), _dtype()).reshape(shape)


def _dtype() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:  # beside numpy and onnxruntime alone it is missing
        raise BackendMissing(
            "an output is bfloat16, which NumPy lacks", fix="pip install ml_dtypes"
        ) from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
