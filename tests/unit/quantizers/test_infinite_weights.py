"""A weight with infinity, NaN or a mask stays in float with a line; the others become integers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.unit.quantizing import model_of, normal, quantize, run, snr

from ortune.core.step import Quantizer
from ortune.graph.ir.edit import take_notes
from ortune.quantizers.int4_weights import Int4Weights
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.int8_weights import Int8Weights

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


NAMES = {TABLE: "table", PRODUCT: "product", BODY: "body", BIAS: "bias"}


def odd_weight(text: str, fill: float) -> np.ndarray:
    array = normal(*((32,) if text is BIAS else (64, 32) if text is not PRODUCT else (32, 32)))
    if text is PRODUCT:
        array[:, 3], array[0, 3] = 0, fill
    else:
        array[..., 3] = fill
    return array


def feeds(text: str) -> list[dict[str, np.ndarray]]:
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
    ids=lambda value: NAMES[value] if isinstance(value, str) else str(value),
)
def test_infinity_stays_in_float(step: Quantizer, text: str, fill: float) -> None:
    weights = {"odd": odd_weight(text, fill), "w": normal(32, 32, seed=1), "v": normal(32, 32)}
    model, samples = model_of(text, weights), feeds(text)
    expected = [run(model, feed)[0] for feed in samples]
    assert all(np.isfinite(answer).all() for answer in expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize(model, step, samples) if step.needs_data else step.apply(model, {})
    assert text is BIAS or "infinity or NaN" in take_notes(model)
    for feed, answer in zip(samples, expected, strict=True):
        assert snr(answer, run(model, feed)[0]) > (8 if isinstance(step, Int4Weights) else 20)
