"""SiLU in all its spellings ends as x Sigmoid(x)."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, model_of, normal, ops, transformed

from ortune.graph.ir.edit import take_notes
from ortune.transforms.fuse_silu import FuseSilu

FEEDS = [{"x": normal(2, 5) * 3}, {"x": np.array([[-80, -10, 0, 10, 80]], np.float32)}]


def text(body: str, *, opset: int = 17, one: str = "float one = {1}", out: str = "") -> str:
    return f"""<ir_version: 10, opset_import: ["": {opset}]>
        g (float[n, 5] x) => (float[n, 5] y{out}) <{one}> {{ {body} }}"""


@pytest.mark.parametrize(
    "body",
    [
        "m = Neg(x) e = Exp(m) d = Add(e, one) y = Div(x, d)",
        "m = Neg(x) e = Exp(m) d = Add(one, e) y = Div(x, d)",
        "m = Neg(x) e = Exp(m) d = Add(e, one) r = Reciprocal(d) y = Mul(x, r)",
        "m = Neg(x) e = Exp(m) d = Add(e, one) r = Reciprocal(d) y = Mul(r, x)",
    ],
)
def test_spellings_through_exp(body: str) -> None:
    becomes({"Sigmoid": 1, "Mul": 1}, text(body), FuseSilu(), FEEDS)


def test_swish() -> None:
    becomes({"Sigmoid": 1, "Mul": 1}, text("y = Swish(x)", opset=24), FuseSilu(), FEEDS)


def test_swish_with_a_factor() -> None:
    source = text("y = Swish<alpha = 1.702>(x)", opset=24)
    model, count = transformed(source, FuseSilu(), FEEDS)
    assert count == 1 and "Swish" not in ops(model)


@pytest.mark.parametrize(
    ("body", "one"),
    [
        ("m = Neg(x) e = Exp(m) d = Add(e, one) y = Div(x, d)", "float one = {2}"),
        ("m = Neg(x) e = Exp(m) d = Add(e, one) y = Div(one, d)", "float one = {1}"),
        ("e = Exp(x) d = Add(e, one) y = Div(x, d)", "float one = {1}"),
        ("s = Sigmoid(x) y = Mul(x, s)", "float one = {1}"),
    ],
)
def test_other_formulas_are_left_alone(body: str, one: str) -> None:
    model = model_of(text(body, one=one))
    before = ops(model)
    assert FuseSilu().apply(model) == 0 and ops(model) == before


def test_a_part_that_is_read_elsewhere_is_left_alone() -> None:
    body = "m = Neg(x) e = Exp(m) d = Add(e, one) y = Div(x, d) z = Relu(e)"
    model = model_of(text(body, out=", float[n, 5] z"))
    before = ops(model)
    assert FuseSilu().apply(model) == 0 and ops(model) == before
    assert "read elsewhere" in take_notes(model)


def test_a_constant_that_widens_is_left_alone() -> None:
    body = "m = Neg(x) e = Exp(m) d = Add(e, one) y = Div(x, d)"
    source = text(body, one="float[1, 1, 1] one = {1}").replace("[n, 5] y", "[1, n, 5] y")
    left_alone(source, FuseSilu(), "higher rank")


def test_a_default_of_an_input_is_no_constant() -> None:
    source = text("m = Neg(x) e = Exp(m) d = Add(e, one) y = Div(x, d)")
    source = source.replace("g (float[n, 5] x)", "g (float[n, 5] x, float one)")
    left_alone(source, FuseSilu())
