"""What TensorRT would refuse, and what no CUDA graph can hold, is named by node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal

from ortune.graph.lint import gpu

HEAD = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[2,4] x) => (float[2,4] y) """


def model(body: str, **weights: np.ndarray) -> ir.Model:
    made = model_of(HEAD + "{" + body + "}", weights)
    for node in made.graph:
        node.name = f"n_{node.outputs[0].name}"
    return made


def pair(dtype: type = np.int8, zero: int = 0, scale: float = 0.5) -> dict[str, np.ndarray]:
    return {"s": np.array(scale, np.float32), "z": np.array(zero, dtype)}


PAIR = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"


FOREIGN = "q = com.microsoft.QuantizeLinear(x, s, z) y = com.microsoft.DequantizeLinear(q, s, z)"


def rules(model: ir.Model) -> list[str]:
    return [one.rule for one in gpu.lint_tensorrt(model)]


def test_a_symmetric_pair_is_taken() -> None:
    assert rules(model(PAIR, **pair())) == []


def test_a_float_model_is_none_of_its_business() -> None:
    assert rules(model("y = Relu(x)")) == []


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        (pair(zero=3), ["tensorrt-zero-point"]),
        (pair(np.uint8), ["tensorrt-type"]),
        (pair(np.uint8, zero=128), ["tensorrt-zero-point", "tensorrt-type"]),
        (pair(np.int16), ["tensorrt-type"]),
        (pair(scale=0.0), ["tensorrt-scale"]),
        ({"s": np.full(4, 0.5, np.float32), "z": np.zeros(4, np.int8)}, ["tensorrt-channels"]),
    ],
)
def test_other_pairs_are_not(weights: dict[str, np.ndarray], found: list[str]) -> None:
    assert rules(model(PAIR, **weights)) == found


def test_a_bias_in_integers_is_named() -> None:
    made = model(
        "b = DequantizeLinear(i, s) y = Add(x, b)",
        i=np.ones(4, np.int32),
        s=np.array(0.1, np.float32),
    )
    (one,) = gpu.lint_tensorrt(made)
    assert one.rule == "tensorrt-type"
    assert one.places == ("n_b (INT32)",)


def test_a_weight_may_have_a_step_a_channel() -> None:
    made = model(
        "w = DequantizeLinear<axis = 1>(i, s, z) y = MatMul(x, w)",
        i=np.ones((4, 4), np.int8),
        s=np.full(4, 0.1, np.float32),
        z=np.zeros(4, np.int8),
    )
    assert rules(made) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            "q, t, u = DynamicQuantizeLinear(x) y = DequantizeLinear(q, t, u)",
            ["tensorrt-dynamic", "tensorrt-type"],
        ),
        (
            "q = QuantizeLinear(x, s, z) p = MatMulInteger(q, w) y = Cast<to = 1>(p)",
            ["tensorrt-operators"],
        ),
        (FOREIGN, ["tensorrt-domain"]),
    ],
)
def test_other_operators_are_not(body: str, found: list[str]) -> None:
    weights = pair() | {"w": np.ones((4, 4), np.int8)}
    needed = {name: array for name, array in weights.items() if f", {name}" in body}
    assert rules(model(body, **needed)) == found


def test_what_keeps_a_graph_from_being_captured() -> None:
    made = model_of(
        """g (float[n,4] x, bool c) => (float[m,4] y, float[k,4] w) {
          s = Shape(x)
          t = Reshape(x, s)
          i = NonZero(t)
          f = Cast<to = 1>(i)
          j = Transpose(f)
          y = Concat<axis = 1>(j, j)
          w = If (c) <
            then_branch = a () => (float[k,4] u) { u = Identity(x) },
            else_branch = b () => (float[k,4] v) { v = Neg(x) }
          >
        }"""
    )
    found = {one.rule: one for one in gpu.lint_cuda_graph(made)}
    assert list(found) == [
        "cuda-graph-control-flow",
        "cuda-graph-counted",
        "cuda-graph-shapes",
        "cuda-graph-cpu",
    ]
    assert found["cuda-graph-control-flow"].severity == "warning"
    assert found["cuda-graph-counted"].places[0].startswith("NonZero")
    assert found["cuda-graph-shapes"].places == ("x",)
    assert found["cuda-graph-cpu"].severity == "note"


def test_a_plain_network_of_one_shape_is_captured() -> None:
    assert gpu.lint_cuda_graph(model("y = MatMul(x, w)", w=normal(4, 4))) == ()
