"""Two small models with state: a recurrent cell, and a decoder whose cache grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HELD, WORDS = 16, 24, 50
_FLOAT, _INT = TensorProto.FLOAT, TensorProto.INT64


def weights() -> dict[str, np.ndarray]:
    """Of the cell: its state becomes an order of magnitude larger than what it is fed."""
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((WIDTH, HELD)).astype(np.float32),
        "u": (0.95 * np.linalg.qr(rng.standard_normal((HELD, HELD)))[0]).astype(np.float32),
        "v": rng.standard_normal((HELD, 3)).astype(np.float32),
    }


def write_cell(path: Path, into: str = "h", out: str = "hn") -> Path:
    """Write ``out = x @ w + into @ u``, ``y = relu(out) @ v``; batch is dynamic."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("MatMul", [into, "u"], ["hu"]),
        helper.make_node("Add", ["xw", "hu"], [out]),
        helper.make_node("Relu", [out], ["active"]),
        helper.make_node("MatMul", ["active", "v"], ["y"]),
    ]
    inputs = [_info("x", _FLOAT, ["batch", WIDTH]), _info(into, _FLOAT, ["batch", HELD])]
    outputs = [_info("y", _FLOAT, ["batch", 3]), _info(out, _FLOAT, ["batch", HELD])]
    return _save(path, nodes, inputs, outputs, weights())


def write_decoder(path: Path) -> Path:
    """Write a decoder that keeps one key for every token; mask and positions grow with them."""
    rng = np.random.default_rng(1)
    held = {
        "words": rng.standard_normal((WORDS, 8)).astype(np.float32),
        "places": rng.standard_normal((64, 8)).astype(np.float32),
        "head": rng.standard_normal((8, WORDS)).astype(np.float32),
        "split": np.array([0, 0, 2, 4], np.int64),
        "joined": np.array([0, 8], np.int64),
        "outer": np.array([1, 3], np.int64),
        "length": np.array([2], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["places", "position_ids"], ["place"]),
        helper.make_node("Add", ["word", "place"], ["token"]),
        helper.make_node("Reshape", ["token", "split"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["key"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["past_key_values.0.key", "key"], ["present.0.key"], axis=2),
        helper.make_node("Cast", ["attention_mask"], ["float_mask"], to=_FLOAT),
        helper.make_node("Unsqueeze", ["float_mask", "outer"], ["wide_mask"]),
        helper.make_node("Mul", ["present.0.key", "wide_mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "length"], ["sum"], keepdims=0),
        helper.make_node("Reshape", ["sum", "joined"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["logits"]),
    ]
    past = ["batch", 2, "past", 4]
    inputs = [
        _info("input_ids", _INT, ["batch", "seq"]),
        _info("attention_mask", _INT, ["batch", "past + seq"]),
        _info("position_ids", _INT, ["batch", "seq"]),
        _info("past_key_values.0.key", _FLOAT, past),
    ]
    outputs = [
        _info("logits", _FLOAT, ["batch", WORDS]),
        _info("present.0.key", _FLOAT, ["batch", 2, "past + seq", 4]),
    ]
    return _save(path, nodes, inputs, outputs, held)


def cell_states(steps: np.ndarray) -> np.ndarray:
    """Return the state that every step [steps, 1, WIDTH] begins with: a loop in NumPy."""
    held, state, found = weights(), np.zeros((1, HELD), np.float32), []
    for x in steps:
        found.append(state)
        state = x @ held["w"] + state @ held["u"]
    return np.stack(found)


def _info(name: str, dtype: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    held: dict[str, np.ndarray],
) -> Path:
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "stateful", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return path
