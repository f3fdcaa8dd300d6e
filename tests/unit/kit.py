"""Toy networks for the tests of the accuracy kit: uneven channels, correlated inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit
from tests.unit.quantizing import model_of, normal

CNN = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,3,12,12] x) => (float[b,6] y) {
  first = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w1, b1)
  a = Relu(first)
  deep = Conv<pads = [1,1,1,1], group = 16>(a, w2, b2)
  b = LeakyRelu<alpha = 0.1>(deep)
  c = Conv<group = 2>(b, w3)
  d = Relu(c)
  mean = GlobalAveragePool(d)
  flat = Flatten(mean)
  y = Gemm<transB = 1>(flat, w4, b4)
}"""

MLP = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,s,32] x) => (float[b,s,24] y) {
  first = MatMul(x, w1)
  biased = Add(first, b1)
  a = Relu(biased)
  second = MatMul(a, w2)
  y = Add(b2, second)
}"""


def cnn() -> ir.Model:
    uneven = np.geomspace(0.05, 3, 16).astype(np.float32)[:, None, None, None]
    return model_of(
        CNN,
        {
            "w1": normal(16, 3, 3, 3, seed=1, scale=0.3) * uneven,
            "b1": normal(16, seed=2, scale=0.1),
            "w2": normal(16, 1, 3, 3, seed=3, scale=0.3) / uneven[::-1],
            "b2": normal(16, seed=4, scale=0.1),
            "w3": normal(16, 8, 1, 1, seed=5, scale=0.3),
            "w4": normal(6, 16, seed=6, scale=0.3),
            "b4": normal(6, seed=7, scale=0.1),
        },
    )


def mlp() -> ir.Model:
    return model_of(
        MLP,
        {
            "w1": normal(32, 48, seed=1, scale=0.2),
            "b1": normal(48, seed=2, scale=0.3),
            "w2": normal(48, 24, seed=3, scale=0.2),
            "b2": normal(24, seed=4, scale=0.1),
        },
    )


def images(count: int = 6, seed: int = 20) -> list[dict[str, np.ndarray]]:
    """Smooth images with a mean: neighbouring pixels are alike, as in photographs."""
    return [{"x": _smooth(normal(2, 3, 12, 12, seed=seed + i)) + 0.5} for i in range(count)]


def rows(count: int = 6, seed: int = 20) -> list[dict[str, np.ndarray]]:
    """Rows of 32 numbers that lie near a space of 8 dimensions, with a mean."""
    mixed = normal(8, 32, seed=99)
    return [{"x": normal(2, 40, 8, seed=seed + i) @ mixed + 0.3} for i in range(count)]


def weights(model: ir.Model) -> list[np.ndarray]:
    """Return the constant weights of all layers in order."""
    found = [
        edit.const_array(node.inputs[1])
        for node in model.graph
        if node.op_type in ("Conv", "Gemm", "MatMul")
    ]
    return [np.array(array) for array in found if array is not None]


def _smooth(values: np.ndarray) -> np.ndarray:
    for axis in (2, 3):
        for _ in range(3):
            values = (values + np.roll(values, 1, axis)) / 2
    return values * 3
