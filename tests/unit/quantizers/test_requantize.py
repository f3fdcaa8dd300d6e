"""Steps for models that arrive quantized that change answers: towards the float model's."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, ops, optimized, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.quantizers.drop_pairs import DropPairs
from ortune.quantizers.float_convs import FloatConvs
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.qoperator import Qoperator
from ortune.quantizers.requantize import Requantize

CNN = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,4,8,8] x) => (float[1,8,2,2] y) {
  c = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, w1, b1)
  r = Relu(c)
  p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)
  d = Conv<kernel_shape = [1,1]>(p, w2, b2)
  e = Relu(d)
  a = Add(e, p)
  f = Conv<kernel_shape = [3,3]>(a, w1b, b1)
  y = Relu(f)
}
"""
WEIGHTS = {
    "w1": normal(8, 4, 3, 3, seed=1, scale=0.2),
    "b1": normal(8, seed=2),
    "w2": normal(8, 8, 1, 1, seed=3, scale=0.3),
    "b2": normal(8, seed=4),
    "w1b": normal(8, 8, 3, 3, seed=5, scale=0.1),
}
X = {"x": normal(1, 4, 8, 8, seed=9)}
SAMPLES = [{"x": normal(1, 4, 8, 8, seed=i)} for i in range(10, 14)]


@pytest.fixture
def cnn() -> ir.Model:
    return model_of(CNN, WEIGHTS)


def test_dynamic_convolutions_become_float_on_the_same_weights(
    cnn: ir.Model, tmp_path: Path
) -> None:
    wanted = run(cnn, X)[0]
    quantize(cnn, Int8Dynamic(ops=(), conv=True))
    assert FloatConvs().apply(cnn, {}) == 3
    assert snr(wanted, run(cnn, X)[0]) > 40
    assert "ConvInteger" not in ops(cnn) and ops(cnn).count("Cast") == 3
    assert not {"Cast", "ConvInteger", "Mul"} & set(optimized(cnn, tmp_path))
    with pytest.raises(Refused):
        FloatConvs().apply(cnn, {})


def test_stored_as_float_where_wanted(cnn: ir.Model) -> None:
    quantize(cnn, Int8Dynamic(ops=(), conv=True))
    assert FloatConvs(at_load=False).apply(cnn, {}) == 3
    assert "Cast" not in ops(cnn)
    assert run(cnn, X)[0].shape == (1, 8, 2, 2)


IDLE = """
<ir_version: 8, opset_import: ["": 17]>
g (float[2,16] x) => (float[2,16] y)
<float s = {0.05}, uint8 z = {128}, uint8 low = {0}, float ws = {0.01}, int8 wz = {0}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, ws, wz)
  m = MatMul(d, v)
  q2 = QuantizeLinear(m, s, low)
  d2 = DequantizeLinear(q2, s, low)
  t = Tanh(d2)
  q3 = QuantizeLinear(t, s, z)
  d3 = DequantizeLinear(q3, s, z)
  y = Erf(d3)
}
"""


def test_pairs_that_no_kernel_takes_go_and_what_they_clipped_stays_clipped() -> None:
    w = np.random.default_rng(0).integers(-127, 128, (16, 16)).astype(np.int8)
    model = model_of(IDLE, {"w": w})
    before = run(model, {"x": normal(2, 16)})[0]
    assert DropPairs().apply(model, {}) == 2
    after = run(model, {"x": normal(2, 16)})[0]
    assert sorted(ops(model)) == sorted(
        ["Clip", "DequantizeLinear", "DequantizeLinear", "Erf", "MatMul", "QuantizeLinear", "Tanh"]
    )
    assert snr(before, after) > 25
    with pytest.raises(Refused):
        DropPairs().apply(model, {})


def test_named_pairs_go_and_no_others(cnn: ir.Model) -> None:
    quantize(cnn, Int8Static(), SAMPLES)
    before, pairs = run(cnn, X)[0], ops(cnn).count("QuantizeLinear")
    assert DropPairs(tensors=("p", "a")).apply(cnn, {}) == 2
    assert ops(cnn).count("QuantizeLinear") == pairs - 2
    assert snr(before, run(cnn, X)[0]) > 25
    with pytest.raises(BadSettings, match="no quantize / dequantize pair stands behind"):
        DropPairs(tensors=("p",)).apply(cnn, {})


def test_a_float_model_has_no_pairs_to_drop(cnn: ir.Model) -> None:
    with pytest.raises(Refused, match="no quantize / dequantize pair"):
        DropPairs().apply(cnn, {})


def test_layers_that_are_quantized_already_are_called_so(cnn: ir.Model) -> None:
    quantize(cnn, Int8Static(head=True), SAMPLES)
    with pytest.raises(Refused, match=r"are quantized already \(3\)") as caught:
        quantize(cnn, Int8Static(head=True), SAMPLES)
    assert "requantize" in caught.value.fix


def test_pairs_of_integer_layers_stay(cnn: ir.Model) -> None:
    quantize(cnn, Int8Static(), SAMPLES)
    with pytest.raises(Refused, match="belongs to an integer kernel"):
        DropPairs().apply(cnn, {})


def test_weights_are_found_again(cnn: ir.Model) -> None:
    """Quantized, back to float and quantized: the same integers and the same answer."""
    quantize(cnn, Int8Static(), SAMPLES)
    once, held = run(cnn, X)[0], integers(cnn)
    assert quantize(cnn, Requantize(), SAMPLES) == 3
    assert held and integers(cnn) == held
    assert snr(once, run(cnn, X)[0]) > 30


def integers(model: ir.Model) -> list[bytes]:
    held = [v.const_value for v in model.graph.initializers.values()]
    found = [t for t in held if t is not None and t.dtype == ir.DataType.INT8 and len(t.shape) > 1]
    return sorted(t.tobytes() for t in found)


def test_a_dynamic_model_becomes_static(cnn: ir.Model) -> None:
    wanted = run(cnn, X)[0]
    quantize(cnn, Int8Dynamic(ops=(), conv=True))
    assert quantize(cnn, Requantize(step=Int8Static()), SAMPLES) == 3
    assert "ConvInteger" not in ops(cnn) and "QuantizeLinear" in ops(cnn)
    assert snr(wanted, run(cnn, X)[0]) > 20


def test_integer_operators_answer_within_one_step(cnn: ir.Model) -> None:
    quantize(cnn, Int8Static(reduce_range=True), SAMPLES)
    pairs = run(cnn, X, "DISABLE_ALL")[0]
    last = next(n for n in reversed(list(cnn.graph)) if n.op_type == "DequantizeLinear")
    step = float(last.inputs[1].const_value.numpy().reshape(-1)[0])  # type: ignore[union-attr]
    assert Qoperator().apply(cnn, {}) == 5
    assert sorted(ops(cnn)) == [
        *["DequantizeLinear", "MaxPool", "QLinearAdd", "QLinearConv", "QLinearConv"],
        *["QLinearConv", "QuantizeLinear"],
    ]
    assert cnn.opset_imports["com.microsoft"] == 1
    for level in ("DISABLE_ALL", "ENABLE_ALL"):
        assert np.abs(run_foreign(cnn, level) - pairs).max() <= step * 1.001
    with pytest.raises(Refused):
        Qoperator().apply(cnn, {})


def run_foreign(model: ir.Model, level: str) -> np.ndarray:
    from tests.unit.quantizing import unchecked

    return unchecked(model, X, level)[0]


def test_products_and_their_bias() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[4,32] x) => (float[4,32] y) {
      a = Gemm<transB = 1>(x, w1, b1)
      c = Relu(a)
      d = MatMul(c, w2)
      e = Sigmoid(d)
      y = Gemm(e, w3, b3)
    }"""
    weights = {
        "w1": normal(32, 32, seed=1, scale=0.2),
        "b1": normal(32, seed=2),
        "w2": normal(32, 32, seed=3, scale=0.2),
        "w3": normal(32, 32, seed=4, scale=0.2),
        "b3": normal(32, seed=5),
    }
    model = model_of(text, weights)
    samples = [{"x": normal(4, 32, seed=i)} for i in range(4)]
    wanted = run(model, samples[0])[0]
    quantize(model, Int8Static(), samples)
    assert Qoperator().apply(model, {}) >= 2
    found = ops(model)
    assert "QGemm" in found and "Gemm" not in found
    from tests.unit.quantizing import unchecked

    assert snr(wanted, unchecked(model, samples[0], "DISABLE_ALL")[0]) > 25


@pytest.mark.parametrize(("dilations", "joined"), [((1, 1), True), ((2, 2), False)])
def test_a_dilated_pool_stays_and_written_out_defaults_go(
    dilations: tuple[int, int], joined: bool
) -> None:
    """AveragePool has dilations since opset 19, QLinearAveragePool has none."""
    text = f"""
    <ir_version: 9, opset_import: ["": 19]>
    g (float[1,4,8,8] x) => (float[1,4,n,n] y) {{
      c = Conv<kernel_shape = [1,1]>(x, w)
      p = AveragePool<kernel_shape = [2,2], dilations = [{dilations[0]},{dilations[1]}]>(c)
      y = Conv<kernel_shape = [1,1]>(p, w)
    }}"""
    model = model_of(text, {"w": normal(4, 4, 1, 1, scale=0.3)})
    wanted = run(model, X)[0]
    quantize(model, Int8Static(reduce_range=True), SAMPLES)
    Qoperator().apply(model, {})
    assert ("QLinearAveragePool" in ops(model)) == joined
    assert snr(wanted, run_foreign(model, "DISABLE_ALL")) > 20


JOINED = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,4,8,8] x) => (float[1,8,6,7] y) {
  c = Conv<kernel_shape = [1,1]>(x, w0)
  s = Sigmoid(c)
  m = Mul(c, s)
  j = Concat<axis = 3>(m, m)
  n = Mul(j, two)
  d = Conv<kernel_shape = [3,3]>(n, w1)
  y = MaxPool<kernel_shape = [1,2], strides = [1,2]>(d)
}
"""


def make_joined() -> ir.Model:
    weights = {"w0": normal(8, 4, 1, 1, seed=1), "w1": normal(8, 8, 3, 3, seed=2)}
    return model_of(JOINED, weights | {"two": np.float32(2)})


def test_pairs_behind_a_concat_are_bounded_for_openvino_alone() -> None:
    for symmetric in (False, True):
        model, plain = make_joined(), make_joined()
        quantize(model, Int8Static(target="openvino", symmetric=symmetric), SAMPLES)
        assert ops(model).count("Min") == 1
        bare = ir.from_proto(ir.to_proto(model))
        (bound,) = (node for node in bare.graph if node.op_type == "Min")
        assert bound.inputs[0] is not None
        bound.outputs[0].replace_all_uses_with(bound.inputs[0])
        bare.graph.remove(bound, safe=True)
        np.testing.assert_array_equal(run(bare, X)[0], run(model, X)[0])
        quantize(plain, Int8Static(), SAMPLES)
        assert "Min" not in ops(plain)
        # Foreign files are bounded by the step that knows what OpenVINO executes, once.
        assert DropPairs(target="openvino").apply(bare, {}) == 1
        assert ops(bare).count("Min") == 1
        with pytest.raises(Refused):
            DropPairs(target="openvino").apply(bare, {})


def test_a_bound_goes_with_its_pair() -> None:
    model, large = make_joined(), {"x": 9 * X["x"]}
    wanted = run(model, large)[0]
    quantize(model, Int8Static(target="openvino"), SAMPLES)
    assert snr(wanted, run(model, large)[0]) < 15, "cut off at the ends of the grids"
    again = ir.from_proto(ir.to_proto(model))
    assert DropPairs(target="openvino", tensors=("n", "x")).apply(model, {}) == 2
    assert "Min" not in ops(model)
    assert snr(wanted, run(model, large)[0]) > 30
    quantize(again, Requantize(Int8Static(target="openvino")), SAMPLES)
    assert ops(again).count("Min") == 1


INT4 = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,32] x) => (float[1,32] y) {
  w = DequantizeLinear(q, s)
  y = MatMul(x, w)
}"""


@pytest.mark.parametrize("step", [Int8Static(), Requantize()])
def test_weights_that_do_not_become_float_again_are_sent_to_the_float_model(
    step: Int8Static | Requantize,
) -> None:
    model = model_of(INT4, {"s": np.float32(0.1)})
    packed = ir.tensor(np.zeros((32, 32), ml_dtypes.int4), dtype=ir.DataType.INT4, name="q")
    value = ir.Value(name="q", const_value=packed, shape=packed.shape)
    model.graph.register_initializer(value)
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            node.replace_input_with(0, value)
    with pytest.raises(Refused, match="are quantized already") as caught:
        quantize(model, step, [{"x": normal(1, 32)}])
    assert caught.value.fix == "quantize the float model that it was made from"
