"""Inputs, outputs and profiles of an engine, as it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ortune.core.errors import BadModel
from ortune.runtimes.tensorrt.profiles import Profile, ShapeRange

_TYPES: Mapping[str, Any] = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "FP8": ml_dtypes.float8_e4m3fn,
}
"""TensorRT's types that an array holds; its 4-bit types are packed and stay inside."""


@dataclass(frozen=True)
class Io:
    """What an engine takes and gives.

    Attributes:
        inputs: Name -> type of array.
        outputs: The same.
        profiles: Ranges of inputs, a profile each; a fixed input is a range of one shape.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    profiles: tuple[Profile, ...]

    @property
    def by_value(self) -> frozenset[str]:
        """Inputs whose values decide shapes: TensorRT reads them in the host's memory."""
        ranges = (one for profile in self.profiles for one in profile.values())
        return frozenset(one.name for one in ranges if one.values)


def described(trt: Any, engine: Any) -> Io:
    """Ask an engine for names, types and ranges.

    Raises:
        BadModel: A tensor is of a type that no array holds.
    """
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for at in range(engine.num_io_tensors):
        name = engine.get_tensor_name(at)
        kind = engine.get_tensor_dtype(name).name
        if kind not in _TYPES:
            raise BadModel(f"'{name}' is {kind}, which no array holds", fix="cast it in the model")
        mine = inputs if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else outputs
        mine[name] = _TYPES[kind]
    ranges = tuple(
        {name: _range(engine, name, at) for name in inputs}
        for at in range(engine.num_optimization_profiles)
    )
    return Io(inputs, outputs, ranges)


def _range(engine: Any, name: str, at: int) -> ShapeRange:
    if engine.is_shape_inference_io(name):
        return ShapeRange(name, (), (), (), values=True)
    least, best, most = (tuple(one) for one in engine.get_tensor_profile_shape(name, at))
    return ShapeRange(name, least, best, most)
