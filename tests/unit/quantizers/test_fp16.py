"""float16: every type in the graph agrees, what must stay float32 stays."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, ops, run, snr

from ortune.core.errors import Refused
from ortune.graph.ir import edit
from ortune.quantizers.fp16 import Fp16


def head(body: str) -> str:
    return f"""<ir_version: 8, opset_import: ["": 17]> {body}"""


def error(model: ir.Model, feed: dict[str, np.ndarray], step: Fp16 | None = None) -> float:
    """Convert in place and return the worst output's SNR."""
    before = run(model, feed)
    assert (step or Fp16()).apply(model, {}) > 0
    after = run(model, feed)
    assert [a.dtype for a in after] == [b.dtype for b in before]
    return min(snr(a, b) for a, b in zip(before, after, strict=True))


def types(model: ir.Model) -> dict[str, ir.DataType | None]:
    return {
        str(value.name): value.dtype
        for node in model.graph.all_nodes()
        for value in (*node.inputs, *node.outputs)
        if value is not None
    }


def perceptron() -> ir.Model:
    return model_of(
        head("""g (float[n,16] x) => (float[n,8] y) {
          a = MatMul(x, w)
          b = Add(a, c)
          y = Relu(b)
        }"""),
        {"w": normal(16, 8), "c": normal(8)},
    )


def test_inputs_and_outputs_keep_their_type() -> None:
    model = perceptron()
    assert error(model, {"x": normal(3, 16)}) > 50
    assert ops(model) == ["Cast", "MatMul", "Add", "Relu", "Cast"]
    held = {v.dtype for v in model.graph.initializers.values()}
    assert held == {ir.DataType.FLOAT16}
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_inputs_and_outputs_change_when_asked() -> None:
    model = perceptron()
    before = run(model, {"x": normal(3, 16)})[0]
    Fp16(keep_io=False).apply(model, {})
    after = run(model, {"x": normal(3, 16).astype(np.float16)})[0]
    assert after.dtype == np.float16
    assert "Cast" not in ops(model)
    assert snr(before, after) > 50


def test_types_follow_through_cast_and_constants() -> None:
    model = model_of(
        head("""g (int64[n] ids, float[n] x) => (float[n] y) {
          f = Cast<to = 1>(ids)
          half = Constant<value_float = 0.5>()
          g = Mul(f, half)
          shape = Shape(x)
          ones = ConstantOfShape<value = float[1] {1}>(shape)
          zeros = ConstantOfShape(shape)
          s = Add(g, ones)
          t = Sum(s, zeros, x)
          back = Cast<to = 1>(t)
          y = Neg(back)
        }""")
    )
    assert error(model, {"ids": np.arange(5), "x": normal(5)}) > 50
    found = types(model)
    assert {found[name] for name in ("f", "g", "ones", "zeros", "s")} == {ir.DataType.FLOAT16}


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_resize_scales_stay_float32(opset: int) -> None:
    model = model_of(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[1,2,4,4] x) => (float[1,2,8,8] y) {{
          roi = Constant<value = float[8] {{0,0,0,0,1,1,1,1}}>()
          scales = Constant<value = float[4] {{1,1,2,2}}>()
          a = Neg(x)
          y = Resize<mode = "linear">(a, roi, scales)
        }}"""
    )
    assert error(model, {"x": normal(1, 2, 4, 4)}) > 50
    node = next(node for node in model.graph if node.op_type == "Resize")
    assert [v.dtype for v in node.inputs if v is not None] == [
        ir.DataType.FLOAT16,
        ir.DataType.FLOAT16,
        ir.DataType.FLOAT,
    ]


def test_operators_without_float16_get_float32() -> None:
    model = model_of(
        head("""g (float x, float[4] v) => (float[k] y, float[4] z) {
          zero = Constant<value = float {0}>()
          one = Constant<value = float {1}>()
          n = Neg(x)
          m = Neg(n)
          r = Range(zero, m, one)
          y = Exp(r)
          axis = Constant<value = int64 {0}>()
          u = Neg(v)
          c = CumSum(u, axis)
          s = RandomNormalLike<seed = 1.0>(c)
          none = Sub(s, s)
          z = Add(c, none)
        }""")
    )
    assert error(model, {"x": np.array(5, np.float32), "v": normal(4)}) > 50
    found = types(model)
    assert found["r"] == found["s"] == ir.DataType.FLOAT
    assert found["n"] == found["z_inner"] == ir.DataType.FLOAT16


def test_quantized_parts_stay() -> None:
    model = model_of(
        head("""g (float[n] x) => (float[n] y) {
          a = Neg(x)
          s = Constant<value = float {0.05}>()
          z = Constant<value = uint8 {128}>()
          q = QuantizeLinear(a, s, z)
          d = DequantizeLinear(q, s, z)
          y = Neg(d)
        }""")
    )
    assert error(model, {"x": normal(9)}) > 25
    assert types(model)["d"] == ir.DataType.FLOAT


def test_casts_of_half_to_other_types_keep_their_type() -> None:
    model = model_of(
        head("""g (float[n] x) => (int64[n] y, double[n] z) {
          a = Abs(x)
          y = Cast<to = 7>(a)
          z = Cast<to = 11>(a)
        }""")
    )
    feed = {"x": np.array([1.5, 7.0], np.float32)}
    before = run(model, feed)
    Fp16().apply(model, {})
    after = run(model, feed)
    assert [array.dtype for array in after] == [np.int64, np.float64]
    assert np.array_equal(before[0], after[0])


def test_scattered_sums_stay_float32() -> None:
    model = model_of(
        head("""g (float[4] x, int64[2,1] at, float[2] u) => (float[4] y) {
          a = Neg(x)
          y = ScatterND<reduction = "add">(a, at, u)
        }""")
    )
    feed = {"x": normal(4), "at": np.array([[1], [1]]), "u": normal(2)}
    assert error(model, feed) > 50


def test_optional_values_are_refused() -> None:
    model = model_of(
        head("""g (float[n] x) => (float[n] y) {
          o = Optional(x)
          y = OptionalGetElement(o)
        }""")
    )
    with pytest.raises(Refused, match="Optional"):
        Fp16().apply(model, {})


IF = head("""g (float[n,4] x, bool c) => (float[n,4] y) <float[4] w = {1,2,3,4}> {
  a = Neg(x)
  r = If(c) <
    then_branch = t () => (float[n,4] p) { p = Mul(a, w) },
    else_branch = e () => (float[n,4] q) {
      k = Constant<value = float[4] {5,6,7,8}>()
      big = Constant<value = float {100000}>()
      b = Mul(k, big)
      d = Div(b, big)
      q = Mul(d, x)
    }>
  y = Neg(r)
}""")


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("keep_io", [True, False])
def test_branches(c: bool, keep_io: bool) -> None:
    model = model_of(IF)
    x = normal(3, 4)
    before = run(model, {"x": x, "c": np.array(c)})[0]
    Fp16(keep_io=keep_io).apply(model, {})
    given = x if keep_io else x.astype(np.float16)
    assert snr(before, run(model, {"x": given, "c": np.array(c)})[0]) > 50
    assert types(model)["r"] == ir.DataType.FLOAT16


def test_a_branch_that_only_hands_out_a_captured_value() -> None:
    model = model_of(
        head("""g (float[n] x, bool c) => (float[n] y) {
          y = If(c) <
            then_branch = t () => (float[n] p) { p = Identity(x) },
            else_branch = e () => (float[n] q) { q = Neg(x) }>
        }""")
    )
    assert error(model, {"x": normal(4), "c": np.array(True)}) > 50


def test_loops_carry_float16() -> None:
    model = model_of(
        head("""g (float[4] x, int64 n) => (float[4] y, float[m,4] all) {
          go = Constant<value = int64 {1}>()
          yes = Cast<to = 9>(go)
          y, all = Loop(n, yes, x) <body = b (int64 i, bool c, float[4] v)
            => (bool c2, float[4] v2, float[4] out) {
              c2 = Identity(c)
              half = Constant<value = float {0.5}>()
              v2 = Mul(v, half)
              out = Add(v2, x)
            }>
        }""")
    )
    assert error(model, {"x": normal(4), "n": np.array(3)}) > 50
    found = types(model)
    assert found["v"] == found["v2"] == ir.DataType.FLOAT16


def test_scans_carry_float16() -> None:
    model = model_of(
        head("""g (float[4] x, float[s,4] xs) => (float[4] y, float[s,4] all) {
          y, all = Scan<num_scan_inputs = 1, body = b (float[4] v, float[4] i)
            => (float[4] v2, float[4] out) {
              v2 = Add(v, i)
              out = Neg(v2)
            }>(x, xs)
        }""")
    )
    assert error(model, {"x": normal(4), "xs": normal(3, 4)}) > 50


def test_sequences() -> None:
    model = model_of(
        head("""g (float[n] x) => (float[m] y) {
          a = Neg(x)
          s = SequenceConstruct(a, a)
          e = SequenceInsert(s, a)
          y = ConcatFromSequence<axis = 0>(e)
        }""")
    )
    assert error(model, {"x": normal(4)}) > 50


def test_sequences_that_are_outputs_keep_their_type() -> None:
    model = model_of(
        head("""g (float[n,16] x) => (seq(float[n,16]) s, float[n,16] last) {
          a = MatMul(x, w)
          b = Relu(a)
          one = SequenceConstruct(a, b)
          s = SequenceInsert(one, b)
          zero = Constant<value_int=0>()
          last = SequenceAt(s, zero)
        }"""),
        {"w": normal(16, 16)},
    )
    feed = {"x": normal(3, 16)}
    (pair, last), count = run(model, feed), Fp16().apply(model, {})
    assert count and "Cast" in ops(model)
    halves, half = run(model, feed)
    assert [array.dtype for array in (*halves, half)] == [np.float32] * 4
    for expected, actual in zip((*pair, last), (*halves, half), strict=True):
        assert snr(expected, actual) > 50


def test_a_sequence_through_a_body_that_is_an_output_is_refused() -> None:
    model = model_of(
        head("""g (bool c, float[n,16] x) => (seq(float[n,16]) s) {
          a = MatMul(x, w)
          s = If (c) <
            then_branch = t () => (seq(float[n,16]) p) { p = SequenceConstruct(a) },
            else_branch = e () => (seq(float[n,16]) q) { q = SequenceConstruct(a, a) }
          >
        }"""),
        {"w": normal(16, 16)},
    )
    with pytest.raises(Refused, match="sequence 's' passes through If"):
        Fp16().apply(model, {})


def test_functions_are_inlined() -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["": 17, "l": 1]>
        g (float[n] x) => (float[n] y) { a = l.f(x) y = l.f(a) }
        <opset_import: ["": 17], domain: "l">
        f (z) => (o) { k = Constant<value = float {1.5}>() o = Mul(z, k) }"""
    )
    assert error(model, {"x": normal(4)}) > 50
    assert not model.functions


def test_weights_that_overflow_keep_their_node_in_float32() -> None:
    model = model_of(
        head("""g (float[n,4] x) => (float[n,4] y) {
          a = MatMul(x, huge)
          y = Mul(a, tiny)
        }"""),
        {"huge": normal(4, 4, scale=1e6), "tiny": np.array(1e-7, np.float32)},
    )
    model.graph.append(ir.node("Neg", [model.graph.outputs[0]]))
    model.graph[2].outputs[0].name = "unused"
    model.graph[2].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    before = run(model, {"x": normal(2, 4)})[0]
    Fp16().apply(model, {})
    assert snr(before, run(model, {"x": normal(2, 4)})[0]) > 50
    assert model.graph.initializers["huge"].dtype == ir.DataType.FLOAT
    assert "left in float32: 2 nodes" in edit.take_notes(model)


def test_masks_are_clipped() -> None:
    model = model_of(
        head("""g (bool[n,4] m, float[n,4] x) => (float[n,4] y) {
          low = Constant<value = float {-3.4028235e38}>()
          zero = Constant<value = float {0}>()
          bias = Where(m, zero, low)
          s = Add(x, bias)
          y = Softmax(s)
        }""")
    )
    mask = np.array([[True, True, False, False], [False] * 4])
    feed = {"m": mask, "x": normal(2, 4)}
    before = run(model, feed)[0]
    Fp16().apply(model, {})
    after = run(model, feed)[0]
    assert np.isfinite(after).all()
    assert snr(before[0], after[0]) > 50
    assert types(model)["bias"] == ir.DataType.FLOAT16


def test_blocked_operators() -> None:
    model = perceptron()
    assert error(model, {"x": normal(3, 16)}, Fp16(block=("MatMul",))) > 50
    node = next(node for node in model.graph if node.op_type == "MatMul")
    assert {value.dtype for value in node.inputs if value} == {ir.DataType.FLOAT}
    assert ops(model) == ["MatMul", "Cast", "Add", "Relu", "Cast"]


def test_one_cast_serves_all_readers() -> None:
    model = model_of(
        head("""g (float[n] x) => (float[n] y) {
          a = Neg(x) b = Exp(x) c = Abs(x) d = Sum(a, b, c) y = Sqrt(d)
        }""")
    )
    assert error(model, {"x": normal(4)}) > 40
    assert ops(model).count("Cast") == 2


def test_operators_of_other_domains_stay_float32() -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[n,8] x) => (float[n,8] y) {
          a = Neg(x)
          b = com.microsoft.Gelu(a)
          y = Neg(b)
        }"""
    )
    assert error(model, {"x": normal(3, 8)}) > 50
    node = next(node for node in model.graph if node.op_type == "Gelu")
    assert [value.dtype for value in node.inputs if value] == [ir.DataType.FLOAT]


@pytest.mark.parametrize("perm", ["1,0,2", "1,2,0"])
def test_a_pair_that_crashes_the_runtime_is_avoided(perm: str) -> None:
    model = model_of(
        head(f"""g (float[4,5,4] x) => (float[p,q,4] y) {{
          a = Neg(x)
          t = Transpose<perm = [{perm}]>(a)
          m = MatMul(t, w)
          y = Neg(m)
        }}"""),
        {"w": normal(4, 4)},
    )
    assert error(model, {"x": normal(4, 5, 4)}) > 50
    assert types(model)["m"] == ir.DataType.FLOAT


def test_an_output_that_is_an_input_too() -> None:
    model = model_of(head("""g (float[n] x) => (float[n] x, float[n] y) { y = Neg(x) }"""))
    assert error(model, {"x": normal(4)}) > 50


def test_integer_models_are_refused() -> None:
    model = model_of(head("""g (int64[n] x) => (int64[n] y) { y = Neg(x) }"""))
    with pytest.raises(Refused, match="float16"):
        Fp16().apply(model, {})


def test_lstm() -> None:
    model = model_of(
        head("""g (float[s,b,8] x) => (float[b,s,4] y) {
          o = LSTM<hidden_size = 4>(x, w, r, c)
          one = Constant<value = int64[1] {1}>()
          d = Squeeze(o, one)
          y = Transpose<perm = [1,0,2]>(d)
        }"""),
        {"w": normal(1, 16, 8), "r": normal(1, 16, 4), "c": normal(1, 32)},
    )
    assert error(model, {"x": normal(3, 2, 8)}) > 45
    assert types(model)["o"] == ir.DataType.FLOAT16


PAIRED = """g (float[1,4,8,8] x) => (float[1,6,8,8] y) {
  a = QuantizeLinear(x, s, z)
  b = DequantizeLinear(a, s, z)
  w = DequantizeLinear<axis = 0>(k, t, u)
  c = Conv<pads = [1,1,1,1]>(b, w, bias)
  y = Relu(c)
}"""


def paired(opset: int = 19, step: float = 0.02) -> ir.Model:
    return model_of(
        f"""<ir_version: 9, opset_import: ["": {opset}]> {PAIRED}""",
        {
            "s": np.array(step, np.float32),
            "z": np.array(0, np.int8),
            "k": np.clip(normal(6, 4, 3, 3, scale=40), -127, 127).astype(np.int8),
            "t": np.full(6, 0.003, np.float32),
            "u": np.zeros(6, np.int8),
            "bias": normal(6, scale=0.1),
        },
    )


def test_pairs_stay_float32_unless_asked() -> None:
    model = paired()
    assert error(model, {"x": normal(1, 4, 8, 8)}) > 30
    scales = {n.inputs[1].dtype for n in model.graph if "Linear" in n.op_type}
    assert scales == {ir.DataType.FLOAT}


def test_pairs_of_16_bits_have_no_cast_before_their_layer() -> None:
    model = paired()
    assert error(model, {"x": normal(1, 4, 8, 8)}, Fp16(pairs=True)) > 30
    scales = {n.inputs[1].dtype for n in model.graph if "Linear" in n.op_type}
    assert scales == {ir.DataType.FLOAT16}
    (conv,) = [node for node in model.graph if node.op_type == "Conv"]
    assert {v.producer().op_type for v in conv.inputs[:2]} == {"DequantizeLinear"}
    assert ops(model).count("Cast") == 2


def test_a_step_too_small_for_16_bits_stays(opset: int = 19) -> None:
    model = paired(opset, step=1e-6)
    Fp16(pairs=True).apply(model, {})
    q = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    assert q.inputs[1].dtype == ir.DataType.FLOAT


def test_pairs_of_16_bits_take_their_opset() -> None:
    with pytest.raises(Refused, match="opset 19") as caught:
        Fp16(pairs=True).apply(paired(17), {})
    assert "raise-opset(to=19)" in caught.value.fix
