"""Every spelling of GELU becomes one operator, and nothing that only looks like it."""

import itertools

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, model_of, normal

from ortune.core.facts import Facts
from ortune.transforms.fuse_gelu import FuseGelu

FEEDS = [
    {"x": normal(2, 5) * 3},
    {"x": np.array([[-1e4, -10, 0, 10, 1e4]], np.float32)},
    {"x": normal(0, 5)},
]

ERF = {
    "div": "e0 = Div(x, root)",
    "mul": "e0 = Mul(x, inverse)",
    "swapped": "e0 = Mul(inverse, x)",
}
CUBE = {
    "pow": "c0 = Pow(x, three) c1 = Mul(c0, c) c2 = Add(x, c1) e0 = Mul(c2, k)",
    "mul": "q = Mul(x, x) c0 = Mul(q, x) c1 = Mul(c, c0) c2 = Add(c1, x) e0 = Mul(k, c2)",
    "square": "q = Pow(x, two) c0 = Mul(x, q) c1 = Mul(c0, c) c2 = Add(x, c1) e0 = Mul(c2, k)",
    "line": "q = Mul(x, x) c1 = Mul(q, c) c2 = Add(one, c1) s = Mul(x, k) e0 = Mul(s, c2)",
    "fast": "q = Mul(x, c) c1 = Mul(q, x) c2 = Add(c1, one) s = Mul(x, c2) e0 = Mul(k, s)",
    "c x first": "q = Mul(c, x) p0 = Mul(q, x) c1 = Mul(p0, x) c2 = Sum(x, c1) e0 = Mul(c2, k)",
}
OUTER = {
    "x first": "m = Mul(x, p) y = Mul(m, half)",
    "half first": "m = Mul(p, half) y = Mul(x, m)",
    "half x": "m = Mul(half, x) y = Mul(m, p)",
    "half x swapped": "m = Mul(x, half) y = Mul(p, m)",
    "divided": "m = Mul(x, p) y = Div(m, two)",
    "x halved": "m = Div(x, two) y = Mul(m, p)",
}


def text(
    inner: str, outer: str, op: str, *, opset: int = 20, more: str = "", out: str = ""
) -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[n, 5] x) => (float[n, 5] y{out})
        <float root = {{1.4142135}}, float inverse = {{0.70710677}}, float[1] one = {{1}},
         float half = {{0.5}}, float three = {{3}}, float two = {{2}}, float c = {{0.044715}},
         float[1, 1] k = {{0.7978846}}> {{
        {inner} e = {op}(e0) p = Add(e, one) {outer} {more} }}"""


@pytest.mark.parametrize(("inner", "outer"), itertools.product(ERF, OUTER))
def test_erf(inner: str, outer: str) -> None:
    model = becomes({"Gelu": 1}, text(ERF[inner], OUTER[outer], "Erf"), FuseGelu(), FEEDS)
    assert model.graph[0].outputs[0].name == "y"


@pytest.mark.parametrize(("inner", "outer"), itertools.product(CUBE, OUTER))
def test_tanh(inner: str, outer: str) -> None:
    model = becomes({"Gelu": 1}, text(CUBE[inner], OUTER[outer], "Tanh"), FuseGelu(), FEEDS[:1])
    assert model.graph[0].attributes["approximate"].value == "tanh"


@pytest.mark.parametrize(
    "wrong",
    [{"1.4142135": "1.5"}, {"{0.5}": "{0.25}"}, {"one = {1}": "one = {2}"}, {"Erf": "Tanh"}],
)
def test_other_constants_are_something_else(wrong: dict[str, str]) -> None:
    source = text(ERF["div"], OUTER["x first"], "Erf")
    for old, new in wrong.items():
        assert old in source
        source = source.replace(old, new)
    left_alone(source, FuseGelu())


@pytest.mark.parametrize("read", ["e0", "e", "m"])
def test_a_part_that_is_read_elsewhere_is_left_alone(read: str) -> None:
    more = f"z = Relu({read})"
    source = text(ERF["div"], OUTER["x first"], "Erf", more=more, out=", float[n, 5] z")
    left_alone(source, FuseGelu(), "a part of it is read elsewhere")


def test_the_sum_may_be_halved() -> None:
    body = "e0 = Mul(inverse, x) e = Erf(e0) h = Mul(e, half) p = Add(h, half) y = Mul(x, p)"
    source = text("", "", "Erf").replace("e = Erf(e0) p = Add(e, one)", body)
    becomes({"Gelu": 1}, source, FuseGelu(), FEEDS)


def test_what_x_is_made_of_is_no_part_of_it() -> None:
    inner = "s = Mul(x, half) r = Mul(s, three) e0 = Div(r, root)"
    source = text(inner, "m = Mul(r, p) y = Mul(m, half)", "Erf")
    becomes({"Mul": 2, "Gelu": 1}, source, FuseGelu(), FEEDS)


def test_a_factor_of_another_value_is_left_alone() -> None:
    source = text("r = Relu(x) e0 = Div(r, root)", OUTER["x first"], "Erf")
    left_alone(source, FuseGelu())


def test_older_opsets_are_left_alone() -> None:
    model = model_of(text(ERF["div"], OUTER["x first"], "Erf", opset=19))
    assert FuseGelu().apply(model) == 0


def test_a_constant_that_widens_is_left_alone() -> None:
    source = text(ERF["div"], OUTER["x first"], "Erf").replace("float[n, 5] y", "float[1, n, 5] y")
    source = source.replace("float half = {0.5}", "float[1, 1, 1] half = {0.5}")
    left_alone(source, FuseGelu())


def test_two_in_a_row_and_one_in_a_branch() -> None:
    inner, outer = ERF["mul"], OUTER["half x"]
    source = f"""<ir_version: 8, opset_import: ["": 20]>
        g (float[n, 5] x, bool w) => (float[n, 5] z)
        <float inverse = {{0.70710677}}, float one = {{1}}, float half = {{0.5}}> {{
        {inner} e = Erf(e0) p = Add(e, one) {outer}
        z = If(w) <
          then_branch = t () => (float[n, 5] b) {{
            a0 = Mul(y, inverse) a1 = Erf(a0) a2 = Add(a1, one) a3 = Mul(y, a2)
            b = Mul(a3, half) }},
          else_branch = f () => (float[n, 5] d) {{ d = Neg(y) }}> }}"""
    feeds = [{"x": normal(2, 5), "w": np.array(w)} for w in (True, False)]
    becomes({"Gelu": 2, "If": 1, "Neg": 1}, source, FuseGelu(), feeds, count=2)


def test_it_applies_by_op_counts() -> None:
    def facts(opset: int, *names: str) -> Facts:
        return Facts(dict.fromkeys(names, 1), 1, 0, 0, {}, opset, 8, (), ())

    assert FuseGelu().applies(facts(20, "Erf", "Mul", "Add"))
    assert FuseGelu().applies(facts(21, "Tanh", "Mul", "Sum"))
    assert not FuseGelu().applies(facts(20, "Relu", "Mul", "Add"))
    assert not FuseGelu().applies(facts(20, "Tanh", "Mul")), "an LSTM taken apart"
    assert FuseGelu().applies(facts(19, "Erf", "Mul", "Add")), "the recipe raises the opset first"
