"""A weight that several nodes read through Identity or Transpose is stored once."""

import warnings

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, quantize, run, snr

from ortune.core.errors import Refused
from ortune.core.step import Quantizer
from ortune.graph.analysis.facts import count_weight_bytes
from ortune.graph.ir.edit import take_notes
from ortune.quantizers.bf16 import Bf16
from ortune.quantizers.fp16 import Fp16
from ortune.quantizers.int4_weights import Int4Weights
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.int8_weights import Int8Weights

HEAD = '<ir_version: 8, opset_import: ["": 17]>'

CHAIN = f"""{HEAD} g (float[b,64] x) => (float[b,64] y) {{
    w1 = Identity(w) w2 = Identity(w1)
    p = MatMul(x, w) a = Relu(p) q = MatMul(a, w1) c = Relu(q) y = MatMul(c, w2) }}"""

LOOP = f"""{HEAD} g (float[b,64] x) => (float[b,64] y) <int64 n = {{2}}, bool go = {{1}}> {{
    w1 = Identity(w)
    a = Gemm<transB = 1, alpha = 0.5>(x, w1)
    l = Loop(n, go, a) <body = b (int64 i, bool c, float[b,64] h) => (bool d, float[b,64] o) {{
      d = Identity(c) wb = Identity(w) m = MatMul(h, wb) o = Tanh(m) }}>
    t = Transpose<perm = [1, 0]>(w1) u = Identity(t)
    y = MatMul(l, u) }}"""

BRANCHES = f"""{HEAD} g (float[b,16,6,6] x) => (float[b,16,6,6] y) <float zero = {{0}}> {{
    w1 = Identity(w)
    a = Conv<pads = [1, 1, 1, 1]>(x, w) s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero)
    h = If(c) <
      then_branch = t () => (float[b,16,6,6] p) {{
        wt = Identity(w) p = Conv<pads = [1, 1, 1, 1]>(a, wt) }},
      else_branch = e () => (float[b,16,6,6] q) {{
        we = Identity(w1) q = Conv<pads = [1, 1, 1, 1]>(a, we) }}>
    y = Conv<pads = [1, 1, 1, 1]>(h, w1) }}"""

EMBEDDING = f"""{HEAD} g (int64[b,s] ids) => (float[b,s,80] y) {{
    table = Identity(w) e = Gather(table, ids) h = Tanh(e)
    t = Transpose<perm = [1, 0]>(table) y = MatMul(h, t) }}"""

NAMES = {CHAIN: "chain", LOOP: "loop", BRANCHES: "branches", EMBEDDING: "embedding"}
SHAPES = {CHAIN: (64, 64), LOOP: (64, 64), BRANCHES: (16, 16, 3, 3), EMBEDDING: (80, 32)}


def feeds(text: str) -> list[dict[str, np.ndarray]]:
    if text is EMBEDDING:
        return [{"ids": np.random.default_rng(seed).integers(0, 80, (1, 5))} for seed in range(4)]
    shape = (2, 16, 6, 6) if text is BRANCHES else (2, 64)
    return [{"x": normal(*shape, seed=seed)} for seed in range(4)]


INTEGERS = [Int8Dynamic(), Int8Static(), Int8Weights(), Int8Weights(form="nbits", block=16)]


@pytest.mark.parametrize(
    ("step", "text", "share"),
    [
        *((step, CHAIN, 0.32) for step in (*INTEGERS, Int4Weights())),
        *((step, LOOP, 0.32) for step in (Int8Dynamic(), Int8Weights())),
        *((step, BRANCHES, 0.32) for step in (Int8Dynamic(conv=True), Int8Weights())),
        *((step, EMBEDDING, 0.4) for step in INTEGERS),
        *((step, CHAIN, 0.51) for step in (Fp16(), Bf16())),
        *((step, text, 0.51) for step in (Fp16(),) for text in (LOOP, BRANCHES, EMBEDDING)),
    ],
    ids=lambda value: NAMES.get(value, str(value)) if isinstance(value, str) else str(value),
)
def test_a_tied_weight_is_stored_once(step: Quantizer, text: str, share: float) -> None:
    model = tied(text)
    before, answers = count_weight_bytes(model), [run(model, feed)[0] for feed in feeds(text)]
    samples = feeds(text) if step.needs_data else []
    quantize(model, step, samples) if samples else step.apply(model, {})
    assert count_weight_bytes(model) < share * before
    if not isinstance(step, Bf16):  # which no CPU kernel multiplies
        for feed, expected in zip(feeds(text), answers, strict=True):
            assert snr(expected, run(model, feed)[0]) > (
                10 if isinstance(step, Int4Weights) else 25
            )


_PLAIN = [Fp16(), Int8Dynamic(reduce_range=True), Int8Static(reduce_range=True), Int8Weights()]

OUTPUTS = f"""{HEAD} g (float[b,64] x, bool c) => (float[b,64] y, float[3] k, float[3] i)
  <float[3] u = {{1, 2, 3}}> {{
    k = Identity(u) w1 = Identity(w) i = If(c) <
      then_branch = t () => (float[3] q) {{ q = Identity(u) }},
      else_branch = e () => (float[3] r) {{ r = Identity(k) }}>
    p = MatMul(x, w) a = Relu(p) y = MatMul(a, w1) }}"""


@pytest.mark.parametrize("step", _PLAIN, ids=str)
def test_a_constant_may_be_an_output_through_identity(step: Quantizer) -> None:
    model = model_of(OUTPUTS, {"w": normal(64, 64, seed=9, scale=0.15)})
    feed = {"x": normal(2, 64), "c": np.array(True)}
    before = run(model, feed)
    quantize(model, step, [feed]) if step.needs_data else step.apply(model, {})
    assert all(snr(a, b) > 25 for a, b in zip(before, run(model, feed), strict=True))


def tied(text: str) -> ir.Model:
    return model_of(text, {"w": normal(*SHAPES[text], seed=9, scale=0.15)})


# A weight with infinity, NaN or a mask stays in float with a line; the others become integers.


TABLE = """g (float[b,t,32] x, int64[b,t] d) => (float[b,t,32] y) {
    bias = Gather(odd, d) q = MatMul(x, w) l = Add(q, bias) p = Softmax<axis = -1>(l)
    y = MatMul(p, v) }"""

PRODUCT = """g (float[b,t,32] x, int64[b,t] d) => (float[b,t,32] y) {
    q = MatMul(x, w) u = MatMul(x, odd) e = Exp(u) s = Add(q, e) y = MatMul(s, v) }"""

BODY = """g (float[b,t,32] x, int64[b,t] d) => (float[b,t,32] y) <bool c = {1}> {
    q = MatMul(x, w)
    p = If(c) < then_branch = t () => (float[b,t,32] o) {
        i = Identity(odd) h = Gather(i, d) l = Add(q, h) o = Softmax<axis = -1>(l) },
      else_branch = e () => (float[b,t,32] n) { n = Identity(q) }>
    y = MatMul(p, v) }"""

BIAS = """g (float[b,32] x, int64[b,t] d) => (float[b,32] y) {
    q = Gemm(x, w, odd) p = Softmax<axis = -1>(q) y = MatMul(p, v) }"""


NAMES_WEIGHTS = {TABLE: "table", PRODUCT: "product", BODY: "body", BIAS: "bias"}


def odd_weight(text: str, fill: float) -> np.ndarray:
    array = normal(*((32,) if text is BIAS else (64, 32) if text is not PRODUCT else (32, 32)))
    if text is PRODUCT:
        array[:, 3], array[0, 3] = 0, fill
    else:
        array[..., 3] = fill
    return array


def feeds_weights(text: str) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    shape = (2, 32) if text is BIAS else (1, 5, 32)
    made = [{"x": normal(*shape, seed=k), "d": rng.integers(0, 64, (1, 5))} for k in range(4)]
    for feed in made:
        feed["x"][..., 0] = np.abs(feed["x"][..., 0]) + 0.1  # times -inf is -inf
    return made


STEPS = [
    Int8Weights(),
    Int8Weights(form="nbits", block=16),
    Int4Weights(block=16),
    Int8Dynamic(embeddings=True),
]


@pytest.mark.parametrize("fill", [-np.inf, -3e38], ids=str)
@pytest.mark.parametrize(
    ("step", "text"),
    [
        *((step, text) for step in STEPS for text in (TABLE, PRODUCT, BODY, BIAS)),
        (Int8Static(embeddings=True), BIAS),  # of the others the ranges are infinite: refused
    ],
    ids=lambda value: NAMES_WEIGHTS[value] if isinstance(value, str) else str(value),
)
def test_infinity_stays_in_float(step: Quantizer, text: str, fill: float) -> None:
    weights = {"odd": odd_weight(text, fill), "w": normal(32, 32, seed=1), "v": normal(32, 32)}
    model, samples = model_of(text, weights), feeds_weights(text)
    expected = [run(model, feed)[0] for feed in samples]
    assert all(np.isfinite(answer).all() for answer in expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize(model, step, samples) if step.needs_data else step.apply(model, {})
    assert text is BIAS or "infinity or NaN" in take_notes(model)
    for feed, answer in zip(samples, expected, strict=True):
        assert snr(answer, run(model, feed)[0]) > (8 if isinstance(step, Int4Weights) else 20)


ALONE = f"{HEAD} g (float[b,64] x) => (float[b,64] y) {{ y = MatMul(x, odd) }}"


@pytest.mark.parametrize(
    "step", [Int8Weights(), Int8Dynamic(), Int8Static(), Int4Weights(block=16)], ids=str
)
def test_where_nothing_else_is_left_infinity_is_the_reason(step: Quantizer) -> None:
    odd = normal(64, 64)
    odd[3, 3] = np.inf
    with pytest.raises(Refused, match="infinity or NaN"):
        step.apply(model_of(ALONE, {"odd": odd}), {})
