"""Static int8: close to float, fused by the runtime, nothing broken on the way."""

from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import (
    model_of,
    needs_vnni,
    normal,
    observe,
    ops,
    optimized,
    quantize,
    run,
    snr,
)

from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Observer, Range
from ortune.core.plugins import catalog
from ortune.core.step import Quantizer
from ortune.graph.ir import edit
from ortune.quantizers.int8_static import Int8Static

CNN = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,3,16,16] x) => (float[b,10] y) {
  first = Conv<pads = [1,1,1,1]>(x, w1, b1)
  a = Relu(first)
  low = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a)
  deep = Conv<pads = [1,1,1,1], group = 8>(low, w2, b2)
  zero = Constant<value = float {0}>()
  six = Constant<value = float {6}>()
  c = Clip(deep, zero, six)
  wide = Conv(c, w3)
  sum = Add(wide, low)
  d = Relu(sum)
  last = Conv<pads = [1,1,1,1]>(d, w4, b4)
  both = Concat<axis = 1>(last, d)
  mean = GlobalAveragePool(both)
  flat = Flatten(mean)
  y = Gemm<transB = 1>(flat, w5, b5)
}"""
CNN_WEIGHTS = {
    "w1": normal(8, 3, 3, 3, seed=1, scale=0.3),
    "b1": normal(8, seed=2, scale=0.1),
    "w2": normal(8, 1, 3, 3, seed=3, scale=0.3),
    "b2": normal(8, seed=4, scale=0.1),
    "w3": normal(8, 8, 1, 1, seed=5, scale=0.3),
    "w4": normal(8, 8, 3, 3, seed=6, scale=0.2),
    "b4": normal(8, seed=7, scale=0.1),
    "w5": normal(10, 16, seed=8, scale=0.3),
    "b5": normal(10, seed=9, scale=0.1),
}
IMAGES = [{"x": normal(2, 3, 16, 16, seed=seed)} for seed in range(20, 24)]
FRESH = {"x": normal(3, 3, 16, 16, seed=99)}

MLP = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,s,32] x) => (float[b,s,32] y) {
  p = MatMul(x, w1)
  q = Add(p, b1)
  r = Relu(q)
  t = MatMul(r, w2)
  y = Add(t, x)
}"""
MLP_WEIGHTS = {
    "w1": normal(32, 64, seed=1, scale=0.2),
    "b1": normal(64, seed=2),
    "w2": normal(64, 32, seed=3, scale=0.2),
}
TOKENS = [{"x": normal(2, 5, 32, seed=seed)} for seed in range(3)]


def cnn() -> ir.Model:
    return model_of(CNN, CNN_WEIGHTS)


def mlp() -> ir.Model:
    return model_of(MLP, MLP_WEIGHTS)


def error(model: ir.Model, step: Quantizer, samples: list, fresh: dict | None = None) -> float:
    """Quantize in place and return the SNR on an unseen sample."""
    fresh = fresh or samples[0]
    before = run(model, fresh)[0]
    quantize(model, step, samples)
    return snr(before, run(model, fresh)[0])


@pytest.mark.parametrize(
    "step",
    [
        Int8Static(),
        Int8Static(per_channel=False),
        Int8Static(activations="s8"),
        Int8Static(activations="s8", symmetric=True),
        Int8Static(symmetric=True),
        Int8Static(reduce_range=True),
        Int8Static(head=True),
        Int8Static(keep_first=2),
    ],
    ids=str,
)
def test_a_cnn_keeps_its_answers(step: Int8Static) -> None:
    assert error(cnn(), step, IMAGES, FRESH) > 22


def test_every_layer_is_counted_and_the_head_left() -> None:
    assert quantize(cnn(), Int8Static(), IMAGES) == 4
    assert quantize(cnn(), Int8Static(head=True, min_side=1), IMAGES) == 5


def test_the_runtime_fuses_every_pair(tmp_path: Path) -> None:
    model = cnn()
    quantize(model, Int8Static(), IMAGES)
    found = optimized(model, tmp_path)
    assert found.count("QLinearConv") == 4
    assert found.count("QLinearAdd") == 1
    assert found.count("QuantizeLinear") == 1
    assert "Relu" not in found
    assert "Clip" not in found
    assert found.count("DequantizeLinear") == 2


def test_moved_values_share_one_grid() -> None:
    model = cnn()
    step = Int8Static()
    assert "low" not in {probe.tensor for probe in step.probes(model)}
    quantize(model, step, IMAGES)
    pairs = {n.inputs[0].name: n for n in model.graph if n.op_type == "QuantizeLinear"}
    assert pairs["low"].inputs[1] is pairs["a"].inputs[1]


def test_probing_twice_asks_the_same() -> None:
    model, step = cnn(), Int8Static()
    assert step.probes(model) == step.probes(model)


def test_matmul_writes_float_and_the_residual_stays_float(tmp_path: Path) -> None:
    model = mlp()
    assert error(model, Int8Static(), TOKENS) > 30
    found = optimized(model, tmp_path)
    assert found.count("MatMulIntegerToFloat") == 2
    assert found.count("QuantizeLinear") == 2
    assert "DequantizeLinear" not in found
    add = next(node for node in model.graph if node.outputs[0].name == "y")
    assert model.graph.inputs[0] in add.inputs


@pytest.mark.parametrize("shape", ["4,32", "b,32", "2,5,32"])
def test_matmul_and_bias_fuse_where_the_runtime_makes_a_gemm(shape: str, tmp_path: Path) -> None:
    text = MLP.replace("float[b,s,32]", f"float[{shape}]")
    model = model_of(text, MLP_WEIGHTS)
    sizes = [int(d) if d.isdigit() else 3 for d in shape.split(",")]
    samples = [{"x": normal(*sizes, seed=seed)} for seed in range(2)]
    assert error(model, Int8Static(), samples) > 30
    found = optimized(model, tmp_path)
    assert found.count("QGemm") == (1 if shape == "2,5,32" else 2)
    assert "DequantizeLinear" not in found


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("bias", ["", "b", "row"])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_gemm(trans: int, bias: str, alpha: float, tmp_path: Path) -> None:
    inputs = ", ".join(["x", "w", *([bias] if bias else [])])
    model = model_of(
        f"""g (float[n,32] x) => (float[n,48] y) {{
          y = Gemm<transB = {trans}, alpha = {alpha}>({inputs})
        }}""",
        {
            "w": normal(48, 32) if trans else normal(32, 48),
            **({"b": normal(48)} if bias == "b" else {}),
            **({"row": normal(1, 48)} if bias == "row" else {}),
        },
    )
    samples = [{"x": normal(4, 32, seed=seed)} for seed in range(3)]
    assert error(model, Int8Static(), samples) > 30
    found = optimized(model, tmp_path)
    assert "QGemm" in found
    assert "DequantizeLinear" not in found


@pytest.mark.parametrize("attributes", ["beta = 0.5", "transA = 1"])
def test_gemms_without_an_integer_kernel_are_left(attributes: str) -> None:
    rows = "32,n" if "transA" in attributes else "n,32"
    model = model_of(
        f"g (float[{rows}] x) => (float[n,48] y) {{ y = Gemm<{attributes}>(x, w, b) }}",
        {"w": normal(32, 48), "b": normal(48)},
    )
    with pytest.raises(Refused):
        Int8Static().apply(model, {"x": Range(-1, 1)})


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_of_every_rank(rank: int) -> None:
    dims = ",".join(["12"] * rank)
    model = model_of(
        f"""g (float[1,4,{dims}] x) => (float[1,6,{dims}] y) {{
          c = Conv<pads = [{",".join(["1"] * 2 * rank)}]>(x, w, b)
          y = Relu(c)
        }}""",
        {"w": normal(6, 4, *[3] * rank, scale=0.2), "b": normal(6)},
    )
    samples = [{"x": normal(1, 4, *[12] * rank, seed=seed)} for seed in range(2)]
    assert error(model, Int8Static(), samples) > 30


def test_a_large_bias_beside_tiny_weights() -> None:
    weights = normal(4, 4, 1, 1)
    weights[1] *= 1e-9
    weights[2] = 0
    model = model_of(
        "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv(x, w, b) }",
        {"w": weights, "b": np.array([1, 2, 3, 4], np.float32)},
    )
    assert error(model, Int8Static(), [{"x": normal(1, 4, 8, 8)}]) > 30


@needs_vnni
def test_weights_in_constant_nodes_and_tied_weights(tmp_path: Path) -> None:
    model = model_of(
        """g (float[b,s,16] x) => (float[b,s,16] y, float[b,s,16] z) {
          k = Constant<value = float[1,1] {0.5}>()
          shape = Constant<value = int64[2] {16, 16}>()
          a = MatMul(x, tied)
          n = Neg(a)
          y = MatMul(n, tied)
          turned = Transpose<perm = [1, 0]>(tied)
          z = MatMul(y, turned)
        }""",
        {"tied": normal(16, 16, scale=0.3)},
    )
    constant = ir.node("Constant", [], {"value": ir.tensor(normal(16, 16, scale=0.3))})
    constant.outputs[0].name, constant.outputs[0].type = "held", ir.TensorType(ir.DataType.FLOAT)
    model.graph.insert_before(model.graph[0], constant)
    first = next(node for node in model.graph if node.op_type == "MatMul")
    first.replace_input_with(1, constant.outputs[0])
    assert error(model, Int8Static(), [{"x": normal(2, 3, 16)}]) > 25
    held = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    assert sum(v.const_value.size == 256 for v in held) == 2
    assert "tied" not in model.graph.initializers


def test_outputs_keep_their_names_and_inputs_may_be_outputs() -> None:
    model = model_of(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] x) {
          y = Conv(x, w)
        }""",
        {"w": normal(4, 4, 1, 1)},
    )
    feed = {"x": normal(1, 4, 8, 8)}
    before = run(model, feed)
    quantize(model, Int8Static(), [feed])
    after = run(model, feed)
    assert [value.name for value in model.graph.outputs] == ["y", "x"]
    assert np.array_equal(before[1], after[1])
    assert snr(before[0], after[0]) > 30


def test_excluded_layers_compute_in_float(tmp_path: Path) -> None:
    model = cnn()
    for node in model.graph:
        node.name = f"node_{node.outputs[0].name}"
    quantize(model, Int8Static(exclude=("node_dee*",)), IMAGES)
    found = optimized(model, tmp_path)
    assert found.count("QLinearConv") == 3
    assert sum(op in ("Conv", "FusedConv") for op in found) == 1


def test_first_convolutions_stay_in_float(tmp_path: Path) -> None:
    model = cnn()
    assert quantize(model, Int8Static(keep_first=2), IMAGES) == 2
    assert optimized(model, tmp_path).count("QLinearConv") == 2


def test_tensors_without_a_range_keep_their_layer_in_float() -> None:
    model = cnn()
    before = run(model, FRESH)[0]
    step = Int8Static()
    ranges = observe(model, step.probes(model), IMAGES)
    ranges["c"] = Range(0, 0)
    del ranges["last"]
    assert step.apply(model, ranges) == 1
    assert snr(before, run(model, FRESH)[0]) > 30


def test_bodies_and_functions() -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["": 17, "l": 1]>
        g (float[b,s,16] x, bool c) => (float[b,s,16] y) {
          a = l.f(x, w)
          y = If(c) <
            then_branch = t () => (float[b,s,16] p) { p = MatMul(a, w) },
            else_branch = e () => (float[b,s,16] q) { q = Neg(a) }>
        }
        <opset_import: ["": 17], domain: "l"> f (u, v) => (o) { o = MatMul(u, v) }""",
        {"w": normal(16, 16, scale=0.3)},
    )
    feed = {"x": normal(1, 3, 16), "c": np.array(True)}
    before = run(model, feed)[0]
    assert quantize(model, Int8Static(), [feed]) == 2
    assert snr(before, run(model, feed)[0]) > 30
    assert edit.take_notes(model) == ""


def test_nothing_to_quantize_is_refused() -> None:
    model = model_of("g (float[n,16] x, float[16,16] w) => (float[n,16] y) { y = MatMul(x, w) }")
    assert list(Int8Static().probes(model)) == []
    with pytest.raises(Refused, match="MatMul"):
        Int8Static().apply(model, {})


def test_empty_batches_run() -> None:
    model = mlp()
    quantize(model, Int8Static(), TOKENS)
    assert run(model, {"x": np.zeros((0, 5, 32), np.float32)})[0].shape == (0, 5, 32)


def outlying(kind: str) -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """A product whose input has two channels fifty times as large as the others."""
    width = 32 if kind == "wide" else 8
    factor = np.ones(32, np.float32)
    factor[[3, 17]] = 50
    model = model_of(
        f"""g (float[b,s,32] x) => (float[b,s,{width}] y) {{
          big = Mul(x, factor)
          a = MatMul(big, w)
          y = Add(a, b)
        }}""",
        {
            "factor": factor,
            "w": normal(32, width, seed=1) / factor[:, None],
            "b": normal(width, seed=2),
        },
    )
    return model, [{"x": normal(2, 5, 32, seed=seed)} for seed in range(4)]


def test_smoothing_saves_outlying_channels(tmp_path: Path) -> None:
    plain = error(*(parts := outlying("wide"))[:1], Int8Static(), parts[1])
    model, samples = outlying("wide")
    smooth = error(model, Int8Static(smooth=0.75), samples)
    assert plain < 18 < 30 < smooth
    assert optimized(model, tmp_path).count("MatMulIntegerToFloat") == 1


def test_splitting_saves_outlying_channels_of_narrowing_layers(tmp_path: Path) -> None:
    model, samples = outlying("narrow")
    plain = error(model, Int8Static(min_side=8), samples)
    model, samples = outlying("narrow")
    split = error(model, Int8Static(min_side=8, split=4), samples)
    assert plain < 18 < 30 < split
    found = optimized(model, tmp_path)
    assert found.count("MatMulIntegerToFloat") == 1
    assert found.count("Gather") == 1


@pytest.mark.parametrize("activation", ["", "Relu"])
@pytest.mark.parametrize(
    "shape", ["kernel_shape = [4,4], strides = [2,2], pads = [1,1,1,1]", "strides = [2,2]"]
)
def test_transposed_convolutions_become_integers(
    activation: str, shape: str, tmp_path: Path
) -> None:
    side = 4 if "4,4" in shape else 2
    follow = f"up = {activation}(t)" if activation else "up = Identity(t)"
    model = model_of(
        f"""g (float[b,6,8,8] x) => (float[b,4,16,16] y) {{
          c = Conv(x, w1)
          t = ConvTranspose<{shape}>(c, w2, b2)
          {follow}
          y = Conv(up, w3)
        }}""",
        {
            "w1": normal(5, 6, 1, 1, seed=1),
            "w2": normal(5, 4, side, side, seed=2, scale=0.3),
            "b2": normal(4, seed=3),
            "w3": normal(4, 4, 1, 1, seed=4),
        },
    )
    samples = [{"x": normal(1, 6, 8, 8, seed=seed)} for seed in range(3)]
    assert error(model, Int8Static(), samples) > 25
    found = optimized(model, tmp_path)
    assert found.count("QLinearConv") == 3
    assert "ConvTranspose" not in found


def test_transposed_convolutions_as_they_are() -> None:
    model = model_of(
        """g (float[1,6,8,8] x) => (float[1,4,16,16] y) {
          y = ConvTranspose<strides = [2,2]>(x, w, b)
        }""",
        {"w": normal(6, 4, 2, 2), "b": normal(4)},
    )
    step = Int8Static(ops=("ConvTranspose",), upsample=False)
    assert error(model, step, [{"x": normal(1, 6, 8, 8)}]) > 30
    weight = next(n for n in model.graph if n.op_type == "ConvTranspose").inputs[1].producer()
    assert weight.attributes["axis"].value == 1


def test_what_follows_a_convolution_is_folded_into_it(tmp_path: Path) -> None:
    model = model_of(
        """g (float[1,4,8,8] x) => (float[1,6,8,8] y) {
          a = Conv(x, w1)
          b = Identity(a)
          c = Add(shift, b)
          d = Mul(c, scale)
          e = BatchNormalization(d, gamma, beta, mean, variance)
          f = Relu(e)
          g = Conv(f, w2, b2)
          h = Sub(one, g)
          y = Div(h, scale)
        }""",
        {
            "w1": normal(6, 4, 1, 1, seed=1),
            "w2": normal(6, 6, 1, 1, seed=2),
            "b2": normal(6, seed=3),
            "shift": normal(1, 6, 1, 1, seed=4),
            "scale": np.full((6, 1, 1), 2.0, np.float32),
            "one": np.ones((1,), np.float32),
            "gamma": normal(6, seed=5),
            "beta": normal(6, seed=6),
            "mean": normal(6, seed=7),
            "variance": np.abs(normal(6, seed=8)) + 0.5,
        },
    )
    feed = {"x": normal(1, 4, 8, 8)}
    before = run(model, feed)[0]
    Int8Static().probes(model)
    assert ops(model) == ["Conv", "Relu", "Conv"]
    assert snr(before, run(model, feed)[0]) > 100
    assert error(model, Int8Static(), [feed]) > 30
    assert optimized(model, tmp_path).count("QLinearConv") == 2


@pytest.mark.parametrize("behind", ["Add(a, other)", "Add(a, table)", "Div(one, a)", "Mul(a, a)"])
def test_what_is_not_one_number_a_channel_is_not_folded(behind: str) -> None:
    model = model_of(
        f"""g (float[1,4,8,8] x, float[1,6,1,1] other) => (float[1,6,8,8] y) {{
          a = Conv(x, w)
          y = {behind}
        }}""",
        {"w": normal(6, 4, 1, 1), "table": normal(1, 6, 1, 8), "one": np.ones(1, np.float32)},
    )
    feed = {"x": normal(1, 4, 8, 8), "other": normal(1, 6, 1, 1)}
    before = run(model, feed)[0]
    Int8Static().probes(model)
    assert len(model.graph) == 2
    assert np.array_equal(before, run(model, feed)[0])


@needs_vnni
def test_gelu_behind_a_convolution_is_still_fused(tmp_path: Path) -> None:
    model = model_of(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
          a = Conv(x, w)
          root = Constant<value = float {1.4142135}>()
          one = Constant<value = float {1}>()
          half = Constant<value = float {0.5}>()
          b = Div(a, root)
          c = Erf(b)
          d = Add(c, one)
          e = Mul(a, d)
          f = Mul(e, half)
          y = Conv(f, w)
        }""",
        {"w": normal(4, 4, 1, 1)},
    )
    assert error(model, Int8Static(), [{"x": normal(1, 4, 8, 8)}]) > 30
    found = optimized(model, tmp_path)
    assert "Gelu" in found
    assert "Erf" not in found


def test_a_head_of_two_products_is_quantized_but_for_the_last() -> None:
    model = model_of(
        """g (float[b,4,4,4] x) => (float[b,10] y) {
          a = Conv(x, w)
          f = Flatten(a)
          h = Gemm(f, w1)
          r = Relu(h)
          y = Gemm(r, w2)
        }""",
        {"w": normal(4, 4, 1, 1), "w1": normal(64, 32), "w2": normal(32, 10)},
    )
    assert quantize(model, Int8Static(), [{"x": normal(1, 4, 4, 4)}]) == 2


def test_an_observer_that_does_not_cover_the_values_is_refused() -> None:
    with pytest.raises(BadSettings, match="observer=sums does not say where values lie"):
        Int8Static(observer=catalog.load_plugin(Observer, "sums")())


HARD_SWISH = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,16,8,8] x) => (float[1,16,8,8] y) {{
  a = Conv(x, w)
  {}
  y = Conv(m, w)
}}"""


@pytest.mark.parametrize("activations", ["u8", "s8"])
@pytest.mark.parametrize(
    "line", ["m = HardSwish(a)", "h = HardSigmoid<alpha = 0.3, beta = 0.6>(a) m = Mul(a, h)"]
)
def test_hard_swish_between_pairs_is_computed_in_integers(
    line: str, activations: Literal["u8", "s8"], tmp_path: Path
) -> None:
    model = model_of(HARD_SWISH.format(line), {"w": normal(16, 16, 1, 1)})
    feed = {"x": 3 * normal(1, 16, 8, 8, seed=2)}
    before = run(model, feed)[0]
    quantize(model, Int8Static(activations=activations), [feed])
    assert "Sum" not in ops(model)
    assert snr(before, run(model, feed)[0]) > 30
    if activations == "u8":  # onnxruntime takes no pairs of int8 to its integer kernels on x86
        made = optimized(model, tmp_path)
        assert {"QLinearAdd", "QLinearMul"} <= set(made)
        assert (made.count("QuantizeLinear"), made.count("DequantizeLinear")) == (1, 1)


def test_hard_swish_that_others_read_too_stays_in_float() -> None:
    lines = "m = HardSwish(a) n = Erf(m) c = Conv(m, w)"
    text = HARD_SWISH.format(lines).replace("y = Conv(m, w)", "y = Add(n, c)")
    model = model_of(text, {"w": normal(16, 16, 1, 1)})
    feed = {"x": normal(1, 16, 8, 8, seed=2)}
    quantize(model, Int8Static(), [feed])
    assert "HardSwish" in ops(model)
