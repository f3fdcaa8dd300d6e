"""Dynamic int8: close to float without data, in bodies too, fused by the runtime."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, needs_vnni, normal, ops, optimized, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.graph.ir import edit
from ortune.quantizers.adaptive_rounding import AdaptiveRounding
from ortune.quantizers.common import nodes
from ortune.quantizers.int8_dynamic import Int8Dynamic

PAIR = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,s,32] x) => (float[b,s,48] y) {
  p = MatMul(x, w1)
  q = MatMul(x, w2)
  sum = Add(p, q)
  y = Add(sum, b)
}"""


def pair() -> ir.Model:
    weights = {"w1": normal(32, 48, seed=1), "w2": normal(32, 48, seed=2), "b": normal(48)}
    return model_of(PAIR, weights)


def error(model: ir.Model, step: Int8Dynamic, feed: dict[str, np.ndarray]) -> float:
    before = run(model, feed)
    assert not step.probes(model)
    assert step.apply(model, {}) > 0
    return min(snr(a, b) for a, b in zip(before, run(model, feed), strict=True))


@pytest.mark.parametrize(
    "step",
    [
        Int8Dynamic(),
        Int8Dynamic(weights="u8"),
        Int8Dynamic(per_channel=False),
        Int8Dynamic(reduce_range=True),
    ],
    ids=str,
)
def test_products_keep_their_answers(step: Int8Dynamic) -> None:
    assert error(pair(), step, {"x": normal(2, 5, 32)}) > 30


def test_an_activation_is_rounded_once_and_everything_fuses(tmp_path: Path) -> None:
    model = pair()
    Int8Dynamic().apply(model, {})
    assert ops(model).count("DynamicQuantizeLinear") == 1
    found = optimized(model, tmp_path)
    assert found.count("MatMulIntegerToFloat") == 2
    assert "MatMulInteger" not in found


def test_a_single_reader_becomes_one_kernel(tmp_path: Path) -> None:
    model = model_of(
        "g (float[b,s,32] x) => (float[b,s,48] y) { p = MatMul(x, w) y = Add(p, b) }",
        {"w": normal(32, 48), "b": normal(48)},
    )
    Int8Dynamic().apply(model, {})
    assert optimized(model, tmp_path) == ["DynamicQuantizeMatMul"]


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("attributes", ["", "alpha = 0.5, ", "beta = 2.0, "])
@pytest.mark.parametrize("bias", ["w, b", "w", "w, given"])
def test_gemm(trans: int, attributes: str, bias: str) -> None:
    model = model_of(
        f"""g (float[n,32] x, float[n,48] given) => (float[n,48] y) {{
          y = Gemm<{attributes}transB = {trans}>(x, {bias})
        }}""",
        {"w": normal(48, 32) if trans else normal(32, 48), "b": normal(48)},
    )
    feed = {"x": normal(4, 32), "given": normal(4, 48)}
    assert error(model, Int8Dynamic(), feed) > 30
    assert "Gemm" not in ops(model)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_lstm(direction: str, per_channel: bool) -> None:
    ways = 2 if direction == "bidirectional" else 1
    model = model_of(
        f"""g (float[s,b,20] x, float[{ways},b,16] h)
        => (float[s,{ways},b,16] y, float[{ways},b,16] c) {{
          y, last, c = LSTM<hidden_size = 16, direction = "{direction}">(x, w, r, b, , h, h)
        }}""",
        {
            "w": normal(ways, 64, 20, seed=1, scale=0.3),
            "r": normal(ways, 64, 16, seed=2, scale=0.3),
            "b": normal(ways, 128, seed=3, scale=0.3),
        },
    )
    feed = {"x": normal(7, 2, 20), "h": normal(ways, 2, 16)}
    assert error(model, Int8Dynamic(per_channel=per_channel), feed) > 25
    assert "DynamicQuantizeLSTM" in ops(model)
    assert not {"w", "r"} & set(model.graph.initializers)


@pytest.mark.parametrize(
    ("layer", "gates", "x", "y", "said"),
    [
        ("GRU<hidden_size = 16>", 48, "s,b,20", "s,1,b,16", "1 GRU stay in float"),
        (
            "LSTM<hidden_size = 16, layout = 1>",
            64,
            "b,s,20",
            "b,s,1,16",
            "1 left alone, the integer operator lacks one of its",
        ),
    ],
)
def test_recurrent_layers_without_an_integer_operator_stay_and_are_named(
    layer: str, gates: int, x: str, y: str, said: str
) -> None:
    model = model_of(
        f"""g (float[{x}] x, float[b,20] u) => (float[{y}] y, float[b,32] z) {{
          y = {layer}(x, w, r)
          z = MatMul(u, m)
        }}""",
        {"w": normal(1, gates, 20), "r": normal(1, gates, 16), "m": normal(20, 32)},
    )
    assert Int8Dynamic().apply(model, {}) == 1
    assert said in edit.take_notes(model)


def test_attention(tmp_path: Path) -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[b,s,32] x) => (float[b,s,32] y) {
          y = com.microsoft.Attention<num_heads = 4>(x, w, b)
        }""",
        {"w": normal(32, 96, scale=0.3), "b": normal(96, scale=0.3)},
    )
    model.graph.outputs[0].shape = ir.Shape(["b", "s", 32])
    assert error(model, Int8Dynamic(), {"x": normal(2, 6, 32)}) > 25
    assert "QAttention" in optimized(model, tmp_path)


@pytest.mark.parametrize(("more", "first"), [(", qkv_hidden_sizes = [32,32,32]", 1), ("", np.inf)])
def test_attention_that_the_kernel_cannot_do_is_left(more: str, first: float) -> None:
    weight = normal(32, 96)
    weight[0, 0] = first
    model = model_of(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[b,s,32] x) => (float[b,s,32] y) {{
          y = com.microsoft.Attention<num_heads = 4{more}>(x, w, b)
        }}""",
        {"w": weight, "b": normal(96)},
    )
    with pytest.raises(Refused):
        Int8Dynamic().apply(model, {})


@pytest.mark.parametrize("bias", [True, False])
def test_convolution_only_when_asked(bias: bool) -> None:
    model = model_of(
        f"""g (float[1,4,8,8] x) => (float[1,6,8,8] y) {{
          y = Conv<pads = [1,1,1,1]>(x, w{", b" if bias else ""})
        }}""",
        {"w": normal(6, 4, 3, 3), **({"b": normal(6)} if bias else {})},
    )
    with pytest.raises(Refused):
        Int8Dynamic().apply(model.clone(), {})
    assert error(model, Int8Dynamic(conv=True), {"x": normal(1, 4, 8, 8)}) > 30
    assert "ConvInteger" in ops(model)


@needs_vnni
def test_bodies_are_quantized_and_share_weights() -> None:
    model = model_of(
        """g (float[n,32] x, bool c) => (float[n,32] y) {
          a = MatMul(x, w)
          y = If(c) <
            then_branch = t () => (float[n,32] p) { p = MatMul(a, w) },
            else_branch = e () => (float[n,32] q) { n = Neg(a) q = MatMul(n, w) }>
        }""",
        {"w": normal(32, 32, scale=0.2)},
    )
    feeds = [{"x": normal(3, 32), "c": np.array(c)} for c in (True, False)]
    before = [run(model, feed)[0] for feed in feeds]
    assert Int8Dynamic().apply(model, {}) == 3
    for expected, feed in zip(before, feeds, strict=True):
        assert snr(expected, run(model, feed)[0]) > 25
    held = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    assert len(held) == 1
    assert "w" not in model.graph.initializers


def test_exclude() -> None:
    model = pair()
    for node in model.graph:
        node.name = f"node_{node.outputs[0].name}"
    assert Int8Dynamic(exclude=("node_p",)).apply(model, {}) == 1
    with pytest.raises(BadSettings, match="nothing_"):
        Int8Dynamic(exclude=("nothing_*",)).apply(pair(), {})


def test_outputs_keep_their_names() -> None:
    model = model_of(
        "g (float[n,32] x) => (float[n,32] y, float[n,32] z) { y = MatMul(x, w) z = Neg(y) }",
        {"w": normal(32, 32)},
    )
    assert error(model, Int8Dynamic(), {"x": normal(3, 32)}) > 30
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_nothing_to_quantize_is_refused() -> None:
    model = model_of("g (float[n,16] x, float[16,16] w) => (float[n,16] y) { y = MatMul(x, w) }")
    with pytest.raises(Refused, match="constant float32 weight"):
        Int8Dynamic().apply(model, {})


def lstm(attributes: str, opset: int = 17) -> ir.Model:
    return model_of(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[s,b,20] x) => (float[s,1,b,16] y) {{
          y = LSTM<hidden_size = 16, {attributes}>(x, w, r)
        }}""",
        {"w": normal(1, 64, 20, seed=1, scale=0.3), "r": normal(1, 64, 16, seed=2, scale=0.3)},
    )


@pytest.mark.parametrize("attributes", ["layout = 0", "layout = 0, clip = 3.0, input_forget = 0"])
def test_defaults_that_the_integer_lstm_does_not_know_are_not_copied(attributes: str) -> None:
    """torch.onnx.export(dynamo=True) writes ``layout=0``."""
    model = lstm(attributes)
    assert error(model, Int8Dynamic(), {"x": normal(7, 2, 20)}) > 25
    made = next(node for node in model.graph if node.op_type == "DynamicQuantizeLSTM")
    assert "layout" not in made.attributes


def test_operators_of_com_microsoft_take_what_is_copied_to_them() -> None:
    """The runtime's own schemas: an attribute that they lack makes a model invalid."""
    pybind = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {s.name: set(s.attributes) for s in pybind.get_all_operator_schema()}
    for op, names in nodes.SUPPORTED_ATTRIBUTES.items():
        assert set(names.split()) <= schemas[op], op


THREE = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,32] x) => (float[b,16] y) {
  first = MatMul(x, w1)
  even = Relu(first)
  second = MatMul(even, w2)
  third = MatMul(second, w3)
  y = Relu(third)
}"""


def three() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """Three products; one channel of the first one's input is 100 times as large, read by none."""
    weights = {"w1": normal(32, 24, seed=1), "w2": normal(24, 24, seed=2)}
    weights["w1"][0] = 0.0
    model = model_of(THREE, weights | {"w3": normal(24, 16, seed=3)})
    feeds = [{"x": normal(8, 32, seed=seed)} for seed in range(4)]
    for feed in feeds:
        feed["x"][:, 0] *= 100.0
    return model, feeds


def test_the_worst_product_stays_in_float_and_is_named() -> None:
    model, feeds = three()
    wanted = run(model, feeds[0])[0]
    plain, _ = three()
    Int8Dynamic().apply(plain, {})
    quantize(model, Int8Dynamic(leave_worst=1), feeds)
    assert ops(model).count("MatMulInteger") == 2
    first = next(node for node in model.graph if node.op_type == "MatMul")
    assert edit.take_notes(model).startswith("left in float, as rounding costs most there")
    assert first.inputs[0] is not None and first.inputs[0].name == "x"
    assert snr(wanted, run(model, feeds[0])[0]) > snr(wanted, run(plain, feeds[0])[0]) + 6


def test_some_product_is_quantized_however_many_are_left() -> None:
    model, feeds = three()
    quantize(model, Int8Dynamic(leave_worst=5), feeds)
    assert ops(model).count("MatMulInteger") == 1


def test_the_accuracy_kit_prepares_the_very_grids() -> None:
    model, feeds = three()
    for feed in feeds:
        feed["x"][:, 0] /= 100.0
    wanted = run(model, feeds[0])[0]
    plain, _ = three()
    Int8Dynamic().apply(plain, {})
    quantize(model, AdaptiveRounding(before=Int8Dynamic()), feeds)
    rounded = run(model, feeds[0])[0]
    Int8Dynamic().apply(model, {})
    kept = [edit.const_array(n.inputs[1]) for n in model.graph if n.op_type == "MatMulInteger"]
    assert all(array is not None and array.dtype == np.int8 for array in kept)
    assert snr(wanted, rounded) > 35
    assert snr(wanted, run(model, feeds[0])[0]) > snr(wanted, run(plain, feeds[0])[0])


def test_tables_are_stored_in_integers_too() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (int64[b,s] ids) => (float[b,s,48] y) { x = Gather(t, ids) y = MatMul(x, w) }"""
    model = model_of(text, {"t": normal(100, 32), "w": normal(32, 48, seed=1)})
    feed = {"ids": np.array([[3, 5, 99]])}
    wanted = run(model, feed)[0]
    Int8Dynamic(embeddings=True).apply(model, {})
    sizes = [v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value]
    assert sum(sizes) < 1.3 * (100 * 32 + 32 * 48)
    assert snr(wanted, run(model, feed)[0]) > 30
