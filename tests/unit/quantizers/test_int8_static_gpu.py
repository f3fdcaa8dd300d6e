"""Static int8 for TensorRT and CUDA: the file itself keeps every rule of the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.unit.quantizers.test_int8_static import CNN, CNN_WEIGHTS, FRESH, IMAGES
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Observer
from ortune.graph.ir import edit
from ortune.graph.ir.qdq import is_weight
from ortune.graph.lint import gpu
from ortune.quantizers.common.qdq import runtime_rules
from ortune.quantizers.drop_pairs import DropPairs
from ortune.quantizers.fp16 import Fp16
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.observers.mse import Mse

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


# Static int8 for OpenVINO: pairs where integers are read, zero points, strides written once.


OPENVINO = Int8Static(target="openvino")
SILU = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
  a = Conv(x, w)
  s = Sigmoid(a)
  m = Mul(a, s)
  y = Conv(m, w)
}"""
RESIDUAL = """g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] e) {
  a = Conv(x, w)
  b = Conv(a, w)
  s = Add(a, b)
  r = Relu(s)
  y = Conv(r, w)
  e = Erf(r)
}"""
EARLY = """g (float[1,4,9,9] x) => (float[1,4,5,5] y) {
  a = Relu(x)
  b = Conv<strides = [2,2]>(a, w)
  c = Conv<strides = [2,2]>(a, v)
  y = Add(b, c)
}"""
OUTPUT: dict[str, list[str]] = {"y_float": []}
"""The pair in front of a graph's output, which steps on foreign files leave."""
WEIGHTS = {"w": normal(4, 4, 1, 1), "v": normal(4, 4, 1, 1, seed=1)}


def rounded(model: ir.Model) -> dict[str, list[str]]:
    """Return tensor that gets a pair -> operators that read the rounded values."""
    found: dict[str, list[str]] = {}
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            late = [use.node for use in node.outputs[0].uses()]
            readers = [use.node.op_type for one in late for use in one.outputs[0].uses()]
            found[str(node.inputs[0].name)] = sorted(readers)
    return found


def test_a_float_activation_behind_a_convolution_reads_float() -> None:
    model = model_of(SILU, WEIGHTS)
    quantize(model, OPENVINO, [{"x": normal(1, 4, 8, 8, seed=2)}])
    assert rounded(model) == {"x": ["Conv"], "m": ["Conv"]}


def test_integers_that_a_layer_reads_pass_through_what_is_between() -> None:
    model = model_of(RESIDUAL, WEIGHTS)
    quantize(model, OPENVINO, [{"x": normal(1, 4, 8, 8, seed=2)}])
    assert rounded(model) == {"x": ["Conv"], "a": ["Add", "Conv"], "b": ["Add"], "r": ["Conv"]}
    relu = model.graph.outputs[1].producer().inputs[0]
    assert sorted(use.node.op_type for use in relu.uses()) == ["Erf", "QuantizeLinear"]


def test_without_zero_points_the_sign_decides() -> None:
    model = model_of(RESIDUAL, WEIGHTS)
    quantize(model, replace(OPENVINO, symmetric=True), [{"x": normal(1, 4, 8, 8, seed=2)}])
    zeros = {
        str(node.inputs[0].name): node.inputs[2].const_value
        for node in model.graph
        if node.op_type == "QuantizeLinear"
    }
    assert {name: zero.dtype for name, zero in zeros.items()} == {
        "x": ir.DataType.INT8,
        "a": ir.DataType.INT8,
        "b": ir.DataType.INT8,
        "r": ir.DataType.UINT8,
    }
    assert not any(zero.numpy().any() for zero in zeros.values())


CLIPPING = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
  a = Conv(x, w)
  r = Relu(a)
  y = Conv(r, w)
}"""


@pytest.mark.parametrize(
    ("target", "observers"),
    [
        ("openvino", {"x": Mse(by_sign=True), "r": Mse(by_sign=True)}),
        ("cpu", {"x": Mse(symmetric=True), "r": Mse(), "y": Mse(symmetric=True)}),
        ("tensorrt", dict.fromkeys("xry", Mse(symmetric=True))),
    ],
)
def test_ranges_are_clipped_for_the_grid_that_they_get(
    target: runtime_rules.Target, observers: dict[str, Observer]
) -> None:
    model = model_of(CLIPPING, {"w": normal(4, 4, 1, 1)})
    step = Int8Static(target=target, observer=Mse(), symmetric=target != "tensorrt")
    assert {probe.tensor: probe.observer for probe in step.probes(model)} == observers


def test_a_file_for_every_cpu_keeps_zero_points() -> None:
    symmetric = replace(OPENVINO, symmetric=True)
    assert not symmetric.portable
    assert not replace(symmetric, reduce_range=True).portable
    assert symmetric.made_portable() == replace(OPENVINO, reduce_range=True)
    assert symmetric.made_portable().portable
    attending = replace(OPENVINO, reduce_range=True, attention=True)
    assert not attending.portable
    assert attending.made_portable() == replace(OPENVINO, reduce_range=True)


@pytest.mark.parametrize(("line", "pools"), [("", 1), ("z = Erf(a)", 0)])
def test_strides_on_one_tensor_are_written_once(line: str, pools: int) -> None:
    text = EARLY.replace("  b =", f"  {line}\n  b =")
    feed = {"x": normal(1, 4, 9, 9, seed=2)}
    model = model_of(text, WEIGHTS)
    before = run(model, feed)[0]
    OPENVINO.probes(model)  # the exact rewrites alone
    assert ops(model).count("MaxPool") == pools
    np.testing.assert_array_equal(run(model, feed)[0], before)
    quantize(model, OPENVINO, [feed])
    assert snr(before, run(model, feed)[0]) > 30


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b = Conv<strides = [2,2]>", "b = Conv<strides = [2,2], pads = [1,1,1,1]>"),
        ("b = Conv<strides = [2,2]>(a, w)", "b = Conv<strides = [2,2]>(x, w)"),
        ("(a, v)", '(a, v) d = Conv<strides = [2,2], auto_pad = "SAME_UPPER">(a, v)'),
    ],
)
def test_other_strides_stay(old: str, new: str) -> None:
    text = EARLY.replace(old, new).replace("=> (float[1,4,5,5] y)", "=> (float y)")
    model = model_of(text.replace("y = Add(b, c)", "y = Sum(b)"), WEIGHTS)
    OPENVINO.probes(model)
    assert "MaxPool" not in ops(model)


def test_pairs_of_another_tool_stay_where_openvino_computes_with_their_integers() -> None:
    feed = {"x": normal(1, 4, 8, 8, seed=2)}
    model = model_of(SILU, WEIGHTS)
    quantize(model, Int8Static(), [feed])
    before = run(model, feed)[0]
    assert rounded(model).keys() == {"x", "a", "s", "m", *OUTPUT}
    DropPairs(target="openvino").apply(model, {})
    assert rounded(model) == {"x": ["Conv"], "m": ["Conv"], **OUTPUT}
    assert snr(before, run(model, feed)[0]) > 25


def test_a_float_reader_of_a_pair_that_stays_takes_float() -> None:
    feed = {"x": normal(1, 4, 8, 8, seed=2)}
    model = model_of(RESIDUAL, WEIGHTS)
    quantize(model, Int8Static(), [feed])
    assert "Erf" in str(rounded(model)["r"]) or "Sum" in str(rounded(model)["r"])
    DropPairs(target="openvino").apply(model, {})
    kept = {"x": ["Conv"], "a": ["Add", "Conv"], "b": ["Add"], "r": ["Conv"]}
    assert rounded(model) == kept | OUTPUT


def test_pairs_of_a_transposed_convolution_stay() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,16,16] y) {
      a = ConvTranspose<strides = [2,2]>(x, u)
      y = Conv(a, w)
    }"""
    feed = {"x": normal(1, 4, 8, 8, seed=2)}
    model = model_of(text, {"u": normal(4, 4, 2, 2), "w": WEIGHTS["w"]})
    quantize(model, OPENVINO, [feed])
    with pytest.raises(Refused, match="belongs to an integer kernel"):
        DropPairs(target="openvino").apply(model, {})
    assert rounded(model) == {"x": ["ConvTranspose"], "a": ["Conv"]}
