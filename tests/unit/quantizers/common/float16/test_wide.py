"""What makes the positions, times and indices that a kept node reads stays in float32."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr

from ortune.quantizers.bf16 import Bf16
from ortune.quantizers.fp16 import Fp16

FREQUENCIES = (1 / 10000 ** (np.arange(16) / 16)).astype(np.float32)

ROTARY = """g (float[b,t,32] x, int64[b,t] p) => (float[b,t,32] y) <int64[1] last = {-1}> {
    f = Cast<to = 1>(p) u = Unsqueeze(f, last) a = Mul(u, freq) c = Cos(a) s = Sin(a)
    e = Concat<axis = -1>(c, s) r = Mul(x, e) y = MatMul(r, w) }"""

OUTER = """g (float[b,t,32] x, int64[b,t] p) => (float[b,t,32] y) <int64[1] one = {1}> {
    f = Cast<to = 1>(p) u = Unsqueeze(f, one) m = MatMul(column, u)
    a = Transpose<perm = [0, 2, 1]>(m) e = Concat<axis = -1>(a, a) c = Cos(e)
    r = Mul(x, c) y = MatMul(r, w) }"""

INDEX = """g (float[b,t,32] x, int64[b,t] p) => (float[b,t,32] y)
    <float three = {3}, int64[1] last = {-1}> {
    f = Cast<to = 1>(p) d = Div(f, three) g0 = Floor(d) i = Cast<to = 7>(g0)
    e = Gather(w, i) h = Add(x, e) y = MatMul(h, v) }"""

EQUAL = """g (float[b,t,32] x, int64[b,t] p) => (float[b,t,32] y)
    <int64 n = {2}, bool go = {1}, int64[1] last = {-1}, float id = {4003}> {
    h = MatMul(x, v)
    l = Loop(n, go, h) <body = b (int64 i, bool c, float[b,t,32] k) => (bool d, float[b,t,32] o) {
      d = Identity(c) f = Cast<to = 1>(p) q = Equal(f, id) m = Cast<to = 1>(q)
      u = Unsqueeze(m, last) z = Mul(k, u) o = Add(k, z) }>
    y = MatMul(l, v) }"""

TIME = """g (float[b,t,32] x, float[b,t] p) => (float[b,t,32] y) <int64[1] last = {-1}> {
    u = Unsqueeze(p, last) a = Mul(u, freq) c = Cos(a) s = Sin(a)
    e = Concat<axis = -1>(c, s) r = Mul(x, e) y = MatMul(r, v) }"""

TEXTS = {"rotary": ROTARY, "outer": OUTER, "index": INDEX, "equal": EQUAL, "time": TIME}


def wide_model(name: str) -> ir.Model:
    rows = 3100 if name == "index" else 32
    weights = {
        "w": normal(rows, 32, seed=1),
        "v": normal(32, 32, seed=2),
        "freq": FREQUENCIES,
        "column": np.concatenate([FREQUENCIES])[None, :, None],
    }
    text = TEXTS[name]
    return model_of(text, {key: array for key, array in weights.items() if key in _words(text)})


def _words(text: str) -> set[str]:
    return set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())


def feeds(name: str, start: int) -> dict[str, np.ndarray]:
    places = (start + np.arange(6))[None]
    kind = np.float32 if name == "time" else np.int64
    return {"x": normal(1, 6, 32, seed=start), "p": places.astype(kind)}


@pytest.mark.parametrize("measured", [[], [3, 8001], [3, 50]], ids=["not", "long", "short"])
@pytest.mark.parametrize("name", TEXTS)
def test_positions_keep_their_digits(name: str, measured: list[int]) -> None:
    model = wide_model(name)
    places = (1, 4000, 8005)
    expected = [run(model, feeds(name, start))[0] for start in places]
    if measured and name != "equal":  # whose body the tests' own calibration does not reach
        quantize(model, Fp16(), [feeds(name, start) for start in measured])
    else:
        Fp16().probes(model)
        Fp16().apply(model, {})
    product = [node for node in model.graph.all_nodes() if node.op_type == "MatMul"][-1]
    assert ir.DataType.FLOAT16 in {value.dtype for value in product.inputs if value is not None}
    for start, answer in zip(places, expected, strict=True):
        assert snr(answer, run(model, feeds(name, start))[0]) > 50


@pytest.mark.parametrize("name", ["rotary", "time"])
def test_bfloat16_keeps_them_too(name: str) -> None:
    model = wide_model(name)
    Bf16().apply(model, {})
    for op in ("Cos", "Sin"):
        node = next(node for node in model.graph if node.op_type == op)
        while node is not None and node.op_type in ("Cos", "Sin", "Mul", "Unsqueeze"):
            value = node.inputs[0]
            assert value is not None and value.dtype == ir.DataType.FLOAT
            node = value.producer()
    assert ml_dtypes.bfloat16 in {
        np.dtype(value.const_value.dtype.numpy()).type
        for value in model.graph.initializers.values()
        if value.const_value is not None
    }


def test_a_layer_ends_the_slice() -> None:
    text = """g (int64[b,t] p) => (float[b,t,32] y) <int64[1] last = {-1}> {
        e = Gather(w, p) h = MatMul(e, v) r = Relu(h) s = Sin(r) y = MatMul(s, v) }"""
    model = model_of(text, {"w": normal(400, 32), "v": normal(32, 32)})
    Fp16().apply(model, {})
    assert ops(model).count("Cast") == 1  # of the output
