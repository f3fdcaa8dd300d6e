"""Constant DequantizeLinear becomes Cast and Mul where convolutions read it."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortune.graph.io import file
from ortune.quantizers.int8_weights import Int8Weights
from ortune.transforms.dequantize_at_load import DequantizeAtLoad

CNN = """
<ir_version: 8, opset_import: ["": 17]>
cnn (float[1,8,12,12] x) => (float[1,16,10,10] y) {
  h = Conv<kernel_shape = [3, 3]>(x, w, b)
  y = Relu(h)
}
"""


@pytest.fixture
def quantized() -> ir.Model:
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(CNN)
    for name, shape in (("w", (16, 8, 3, 3)), ("b", (16,))):
        values = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    model = ir.serde.deserialize_model(proto)
    assert Int8Weights().apply(model, {}) == 1
    return model


def run(model: ir.Model, path: Path) -> tuple[np.ndarray, list[str]]:
    file.save(model, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_suffix(".optimized"))
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    feed = {"x": np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)}
    loaded = onnx.load(path.with_suffix(".optimized"))
    return session.run(None, feed)[0], [node.op_type for node in loaded.graph.node]


def test_the_runtime_folds_what_it_did_not_fold(quantized: ir.Model, tmp_path: Path) -> None:
    before, kept = run(quantized, tmp_path / "before.onnx")
    assert DequantizeAtLoad().apply(quantized) == 1
    after, folded = run(quantized, tmp_path / "after.onnx")
    assert "DequantizeLinear" in kept
    assert not {"DequantizeLinear", "Cast", "Mul"} & set(folded)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert DequantizeAtLoad().apply(quantized) == 0


def test_the_weights_stay_integers_in_the_file(quantized: ir.Model) -> None:
    DequantizeAtLoad().apply(quantized)
    kinds = {name: v.dtype for name, v in quantized.graph.initializers.items()}
    assert kinds["w_int"] == ir.DataType.INT8


def test_integer_kernels_keep_theirs() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    qdq (uint8[1,2,4,4] q) => (float[1,2,4,4] y)
    <float s = {0.1}, uint8 z = {0}, float[2] ws = {0.1, 0.2}, int8[2] wz = {0, 0},
     int8[2,2,1,1] w = {1, 2, 3, 4}> {
      x = DequantizeLinear(q, s, z)
      v = DequantizeLinear<axis = 0>(w, ws, wz)
      y = Conv(x, v)
    }
    """
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    assert DequantizeAtLoad().apply(model) == 0
