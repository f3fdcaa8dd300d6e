"""Weights as int8: a quarter of the size, whoever reads them."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, ops, optimized, run, snr

from ortune.core.errors import Refused
from ortune.quantizers.int8_weights import Int8Weights

EVERY = {
    "conv": (
        """g (float[1,16,8,8] x) => (float[1,24,8,8] y) { y = Conv(x, w) }""",
        {"w": normal(24, 16, 1, 1)},
        {"x": normal(1, 16, 8, 8)},
    ),
    "transposed conv": (
        """g (float[1,16,8,8] x) => (float[1,24,8,8] y) { y = ConvTranspose(x, w) }""",
        {"w": normal(16, 24, 1, 1)},
        {"x": normal(1, 16, 8, 8)},
    ),
    "matmul": (
        """g (float[b,s,32] x) => (float[b,s,48] y) { y = MatMul(x, w) }""",
        {"w": normal(32, 48)},
        {"x": normal(2, 3, 32)},
    ),
    "gemm": (
        """g (float[n,32] x) => (float[n,48] y) { y = Gemm<transB = 1>(x, w) }""",
        {"w": normal(48, 32)},
        {"x": normal(3, 32)},
    ),
    "gru": (
        """g (float[s,b,24] x) => (float[s,1,b,16] y) { y = GRU<hidden_size = 16>(x, w, r) }""",
        {"w": normal(1, 48, 24, scale=0.3), "r": normal(1, 48, 16, scale=0.3)},
        {"x": normal(5, 2, 24)},
    ),
}


def head(body: str) -> str:
    return f"""<ir_version: 8, opset_import: ["": 17]> {body}"""


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("fold", [False, True])
def test_every_operator_keeps_its_answers(kind: str, fold: bool) -> None:
    body, weights, feed = EVERY[kind]
    model = model_of(head(body), weights)
    before, size = run(model, feed)[0], len(ir.to_proto(model).SerializeToString())
    assert Int8Weights(min_size=256, fold=fold).apply(model, {}) == len(weights)
    # Level basic: from extended on the runtime rounds activations too (MatMulNBits).
    assert snr(before, run(model, feed, "ENABLE_BASIC")[0]) > 30
    assert ("DequantizeLinear" in ops(model)) is not fold
    assert len(ir.to_proto(model).SerializeToString()) < 0.6 * size
    assert not set(weights) & set(model.graph.initializers)


def test_folded_weights_leave_nothing_to_run(tmp_path: Path) -> None:
    body, weights, _ = EVERY["conv"]
    model = model_of(head(body), weights)
    Int8Weights(min_size=256, fold=True).apply(model, {})
    assert optimized(model, tmp_path, "ENABLE_BASIC") == ["Conv"]


def test_an_embedding_is_looked_up_in_integers() -> None:
    model = model_of(
        head("""g (int64[b,s] ids) => (float[b,s,32] y) { y = Gather(table, ids) }"""),
        {"table": normal(100, 32)},
    )
    feed = {"ids": np.array([[3, 5, 99], [0, 0, 1]])}
    before = run(model, feed)[0]
    assert Int8Weights().apply(model, {}) == 1
    assert ops(model) == ["Gather", "DequantizeLinear"]
    assert model.graph[0].inputs[0].dtype == ir.DataType.INT8
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert snr(before, run(model, feed)[0]) > 30


@pytest.mark.parametrize("fold", [False, True])
def test_a_tied_embedding_is_stored_once(fold: bool) -> None:
    model = model_of(
        head("""g (int64[b,s] ids) => (float[b,s,100] y) {
          e = Gather(table, ids)
          turned = Transpose<perm = [1, 0]>(table)
          y = MatMul(e, turned)
        }"""),
        {"table": normal(100, 32)},
    )
    feed = {"ids": np.array([[3, 5, 99], [0, 0, 1]])}
    before = run(model, feed)[0]
    assert Int8Weights(fold=fold).apply(model, {}) == 1
    held = [v for v in model.graph.initializers.values() if v.const_value.size == 3200]
    assert [v.dtype for v in held] == [ir.DataType.INT8]
    assert snr(before, run(model, feed)[0]) > 30


def test_weights_in_bodies_stay_there() -> None:
    model = model_of(
        head("""g (float[n,32] x, bool c) => (float[n,32] y) {
          y = If(c) <
            then_branch = t () => (float[n,32] p) { k = Identity(w) p = MatMul(x, k) },
            else_branch = e () => (float[n,32] q) { q = Neg(x) }>
        }"""),
        {"w": normal(32, 32)},
    )
    node = next(node for node in model.graph if node.op_type == "If")
    body = node.attributes["then_branch"].as_graph()
    held = ir.node("Constant", [], {"value": ir.tensor(normal(32, 32, seed=5))})
    held.outputs[0].name, held.outputs[0].type = "held", ir.TensorType(ir.DataType.FLOAT)
    body.insert_before(body[0], held)
    next(n for n in body if n.op_type == "MatMul").replace_input_with(1, held.outputs[0])
    feed = {"x": normal(2, 32), "c": np.array(True)}
    before = run(model, feed)[0]
    assert Int8Weights().apply(model, {}) == 1
    assert [n.op_type for n in body].count("DequantizeLinear") == 1
    assert snr(before, run(model, feed, "ENABLE_BASIC")[0]) > 30


def test_small_weights_biases_and_other_types_are_left() -> None:
    model = model_of(
        head("""g (float[n,8] x, double[n,64] d) => (float[n,8] y, double[n,64] z) {
          y = MatMul(x, w)
          z = MatMul(d, v)
        }"""),
        {"w": normal(8, 8), "v": normal(64, 64).astype(np.float64)},
    )
    with pytest.raises(Refused, match="1,024 elements"):
        Int8Weights().apply(model, {})


def test_the_file_is_a_quarter(tmp_path: Path) -> None:
    model = model_of(
        head("""g (float[b,512] x) => (float[b,512] y) { y = MatMul(x, w) }"""),
        {"w": normal(512, 512)},
    )
    ir.save(model, tmp_path / "before.onnx")
    Int8Weights().apply(model, {})
    ir.save(model, tmp_path / "after.onnx")
    onnx.checker.check_model(tmp_path / "after.onnx", full_check=True)
    sizes = [(tmp_path / f"{name}.onnx").stat().st_size for name in ("after", "before")]
    assert 0.25 < sizes[0] / sizes[1] < 0.27
