"""Static int8 for TensorRT and CUDA: the file itself keeps every rule of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.unit.quantizers.test_int8_static import CNN, CNN_WEIGHTS, FRESH, IMAGES
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.graph.ir import edit
from ortune.graph.ir.qdq import is_weight
from ortune.graph.lint import gpu
from ortune.quantizers.common.qdq import runtime_rules
from ortune.quantizers.common.qdq.runtime_rules import Treatment
from ortune.quantizers.fp16 import Fp16
from ortune.quantizers.int8_static import Int8Static

TIED = """<ir_version: 8, opset_import: ["": 17]>
g (int64[b,s] ids) => (float[b,s,64] y) {
  rows = Gather(table, ids)
  p = MatMul(rows, w)
  r = Relu(p)
  turned = Transpose<perm = [1, 0]>(table)
  y = MatMul(r, turned)
}"""
TIED_WEIGHTS = {"table": normal(64, 32, seed=1), "w": normal(32, 32, seed=2, scale=0.2)}
IDS = np.arange(12, dtype=np.int64).reshape(2, 6)


def quantized(target: runtime_rules.Target, **fields: object) -> tuple[ir.Model, float]:
    """Return a convolutional network in integers and its SNR on an unseen sample."""
    model = model_of(CNN, CNN_WEIGHTS)
    before = run(model, FRESH)[0]
    quantize(model, Int8Static(target=target, head=True, **fields), IMAGES)
    return model, snr(before, run(model, FRESH)[0])


def biases(model: ir.Model) -> list[ir.Value]:
    nodes = [node for node in model.graph if node.op_type == "Conv"]
    return [n.inputs[2] for n in nodes if len(n.inputs) > 2 and n.inputs[2] is not None]


@pytest.mark.parametrize("target", ["tensorrt", "cuda"])
def test_biases_stay_float(target: runtime_rules.Target) -> None:
    model, close = quantized(target)
    found = biases(model)
    assert len(found) == 3
    assert all(edit.const_array(value) is not None for value in found)
    assert {edit.const_array(value).dtype for value in found} == {np.dtype(np.float32)}
    assert close > 25


def test_a_cpu_and_directml_have_them_in_integers() -> None:
    for target in ("cpu", "directml"):
        model, _ = quantized(target)
        assert all(edit.const_array(value) is None for value in biases(model))


def test_tensorrt_takes_the_file_and_not_that_of_a_cpu() -> None:
    model, _ = quantized("tensorrt")
    assert gpu.lint_tensorrt(model) == ()
    other, _ = quantized("cpu")
    rules = {one.rule for one in gpu.lint_tensorrt(other)}
    assert "tensorrt-type" in rules


def test_every_layer_multiplies_integers_by_integers() -> None:
    model, _ = quantized("tensorrt")
    multiplied = [node for node in model.graph if node.op_type == "Conv"]
    assert len(multiplied) == 4
    for node in multiplied:
        assert node.inputs[0].producer().op_type == "DequantizeLinear"
        assert is_weight(node.inputs[1])


def test_products_keep_their_form_and_their_float_bias() -> None:
    model = model_of(
        """g (float[4,32] x) => (float[4,32] y) {
          p = MatMul(x, w)
          y = Add(p, b)
        }""",
        {"w": normal(32, 32, scale=0.2), "b": normal(32)},
    )
    feed = {"x": normal(4, 32, seed=5)}
    before = run(model, feed)[0]
    quantize(model, Int8Static(target="tensorrt"), [feed])
    assert ops(model).count("MatMul") == 1
    assert ops(model).count("DequantizeLinear") == 2
    assert gpu.lint_tensorrt(model) == ()
    assert snr(before, run(model, feed)[0]) > 30


def test_a_tied_table_stays_float_and_its_weight_stands_straight() -> None:
    model = model_of(TIED, TIED_WEIGHTS)
    before = run(model, {"ids": IDS})[0]
    quantize(model, Int8Static(target="tensorrt"), [{"ids": IDS}])
    (gather,) = [node for node in model.graph if node.op_type == "Gather"]
    assert edit.const_array(gather.inputs[0]).dtype == np.float32
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and is_weight(node.outputs[0]):
            assert edit.const_array(node.inputs[0]) is not None
    assert gpu.lint_tensorrt(model) == ()
    assert snr(before, run(model, {"ids": IDS})[0]) > 25


def transposed(groups: int) -> ir.Model:
    return model_of(
        f"""g (float[1,4,8,8] x) => (float[1,6,16,16] y) {{
          y = ConvTranspose<strides = [2,2], group = {groups}>(x, w, b)
        }}""",
        {"w": normal(4, 6 // groups, 2, 2), "b": normal(6)},
    )


def test_a_transposed_convolution_has_one_step() -> None:
    model, feed = transposed(1), {"x": normal(1, 4, 8, 8)}
    before = run(model, feed)[0]
    quantize(model, Int8Static(target="tensorrt"), [feed])
    (node,) = [node for node in model.graph if node.op_type == "ConvTranspose"]
    scale = edit.const_array(node.inputs[1].producer().inputs[1])
    assert scale.size == 1
    assert snr(before, run(model, feed)[0]) > 30


def test_one_in_groups_stays_float() -> None:
    with pytest.raises(Refused, match="grouped ConvTranspose, which tensorrt refuses"):
        quantize(transposed(2), Int8Static(target="tensorrt"), [{"x": normal(1, 4, 8, 8)}])


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"wide": ("n*",)}, "16-bit"), ({"embeddings": True}, "table of integers")],
)
def test_what_tensorrt_does_not_know_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        Int8Static(target="tensorrt", **fields)
    Int8Static(**fields)


def test_every_rule_of_a_gpu_has_a_source_that_can_be_looked_up() -> None:
    found = [r for r in runtime_rules.RULES if r.provider in ("tensorrt", "cuda")]
    assert {
        Treatment.SYMMETRIC_S8,
        Treatment.FLOAT_BIAS,
        Treatment.STRAIGHT,
        Treatment.EIGHT_BITS,
    } <= {r.treatment for r in found}
    known = ("#", "developer guide", ".cc", ".cpp")
    assert all(any(mark in rule.source for mark in known) for rule in found)


def test_onnxruntime_puts_the_bias_into_integers_unless_it_is_told_not_to(tmp_path: Path) -> None:
    """Its weight_bias_quantization.cc runs before any provider sees the graph."""
    model, _ = quantized("tensorrt")
    for disabled, wanted in (("0", True), ("1", False)):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_quant_qdq", disabled)
        options.optimized_model_filepath = str(tmp_path / f"{disabled}.onnx")
        ort.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        made = onnx.load(tmp_path / f"{disabled}.onnx")
        types = {tensor.data_type for tensor in made.graph.initializer}
        assert (onnx.TensorProto.INT32 in types) is wanted


def test_with_the_rest_in_float16_no_cast_parts_a_pair_from_its_layer() -> None:
    model = model_of(CNN.replace('"": 17', '"": 19'), CNN_WEIGHTS)
    before = run(model, FRESH)[0]
    quantize(model, Int8Static(target="tensorrt", head=True), IMAGES)
    Fp16(pairs=True).apply(model, {})
    assert gpu.lint_tensorrt(model) == ()
    for node in model.graph:
        if node.op_type == "Conv":
            assert [v.producer().op_type for v in node.inputs[:2]] == ["DequantizeLinear"] * 2
            assert {v.dtype for v in node.inputs} == {ir.DataType.FLOAT16}
    assert ops(model).count("Cast") == 2
    assert snr(before, run(model, FRESH, "DISABLE_ALL")[0]) > 25
