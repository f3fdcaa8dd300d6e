"""Models of one known amount of work each: what a runtime reaches on them is its ceiling."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_OPSET, _IR = 17, 9
FEW, MANY = 8, 264
"""Kernels of the two chains whose difference is the overhead of a kernel."""
_SIDES = (512, 768)
_INT8 = (512, 1024, 1024)
_ROW = 1024


@dataclass(frozen=True)
class PeakModel:
    """One model and what a run of it does at least.

    Attributes:
        shape: Of its only input, ``x``, in float32.
        size: Bytes read and written a run.
    """

    shape: tuple[int, ...]
    flops: int = 0
    size: int = 0


def write(folder: Path, memory: int, cache: int) -> dict[str, PeakModel]:
    """Write the models to ``folder/NAME.onnx``; all give small outputs.

    A runtime may copy what it returns: that time must not count.

    Args:
        memory: Bytes of a tensor that no cache holds.
        cache: Bytes of a tensor that the last-level cache holds several times.
    """
    made = {f"float{side}": _product(side, side, side) for side in _SIDES}
    made["int8"] = _integers(*_INT8)
    for name, size in (("memory", memory), ("cache", cache)):
        rows = size // 4 // _ROW
        made[f"{name}-copy"] = _copy(rows)
        made[f"{name}-read"] = PeakModel((rows, _ROW), 0, 4 * rows * _ROW), [_widest("x")], {}
    made |= {"few": _chain(FEW), "many": _chain(MANY)}
    for name, (model, nodes, weights) in made.items():
        _save(folder / f"{name}.onnx", model, nodes, weights)
    return {name: model for name, (model, _, _) in made.items()}


def _product(rows: int, deep: int, columns: int) -> _Model:
    nodes = [_node("MatMul", "x w", "y"), _widest("y")]
    return (
        PeakModel((rows, deep), 2 * rows * deep * columns),
        nodes,
        {"w": _noise(deep, columns)},
    )


def _integers(rows: int, deep: int, columns: int) -> _Model:
    """U8 by S8 as runtimes take it: Q/DQ pairs around a float product."""
    nodes = [
        _node("QuantizeLinear", "x scale zero", "q"),
        _node("DequantizeLinear", "q scale zero", "left"),
        _node("DequantizeLinear", "w scale none", "right"),
        _node("MatMul", "left right", "y"),
        _widest("y"),
    ]
    weights: dict[str, NDArray[Any]] = {
        "w": np.clip(_noise(deep, columns) * 20, -63, 63).astype(np.int8),
        "scale": np.array(0.01, np.float32),
        "zero": np.array(128, np.uint8),
        "none": np.array(0, np.int8),
    }
    return PeakModel((rows, deep), 2 * rows * deep * columns), nodes, weights


def _copy(rows: int) -> _Model:
    """Relu reads and writes everything; of what it writes the first row is returned."""
    nodes = [_node("Relu", "x", "r"), _node("Slice", "r begin end begin", "y")]
    weights: dict[str, NDArray[Any]] = {"begin": np.array([0]), "end": np.array([1])}
    return PeakModel((rows, _ROW), 0, 8 * rows * _ROW), nodes, weights


def _chain(count: int) -> _Model:
    """Softmax, as no runtime merges two of them."""
    names = ["x", *(f"t{i}" for i in range(1, count)), "y"]
    nodes = [_node("Softmax", a, b) for a, b in itertools.pairwise(names)]
    return PeakModel((1, 8)), nodes, {}


def _node(op: str, inputs: str, output: str) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output])


def _widest(name: str) -> onnx.NodeProto:
    return helper.make_node("ReduceMax", [name], ["max"], axes=[1])


def _noise(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _save(path: Path, model: PeakModel, nodes: list[onnx.NodeProto], weights: _Weights) -> None:
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, model.shape)
    out = helper.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.FLOAT, [None, None])
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "peak", [given], [out], held)
    imports = [helper.make_opsetid("", _OPSET)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=_IR), path)


_Weights: TypeAlias = Mapping[str, NDArray[Any]]
_Model: TypeAlias = tuple[PeakModel, list[onnx.NodeProto], _Weights]
