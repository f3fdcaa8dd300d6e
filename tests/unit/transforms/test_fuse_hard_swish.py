"""Every spelling of HardSwish and HardSigmoid becomes one operator, and nothing else does."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, normal

from ortune.transforms.fuse_hard_swish import FuseHardSwish

STEP = FuseHardSwish()
FEEDS = [
    {"x": normal(2, 5) * 4},
    {"x": np.array([[-1e4, -3, 0, 3, 1e4]], np.float32)},
    {"x": normal(0, 5)},
]
BOUNDED = {
    "clip": "a = Add(x, three) b = Clip(a, zero, six)",
    "relu min": "a = Add(three, x) r = Relu(a) b = Min(r, six)",
    "min max": "a = Add(x, three) r = Min(six, a) b = Max(zero, r)",
    "relu clip": "a = Sum(x, three) r = Relu(a) b = Clip(r, , six)",
}
SWISH = {
    "last": "m = Mul(x, b) y = Div(m, six)",
    "first": "m = Div(b, six) y = Mul(m, x)",
    "by product": "m = Mul(b, sixth) y = Mul(x, m)",
    "x first": "m = Mul(x, sixth) y = Mul(m, b)",
}


def text(body: str, *, opset: int = 14, more: str = "", kind: str = "float") -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({kind}[n, 5] x) => ({kind}[n, 5] y{more})
        <{kind} three = {{3}}, {kind} zero = {{0}}, {kind} six = {{6}}, {kind}[1] one = {{1}},
         {kind}[1] sixth = {{0.16666667}}, {kind}[1, 1, 1] wide = {{6}}, {kind} half = {{0.5}}>
        {{ {body} }}"""


@pytest.mark.parametrize("outer", SWISH)
@pytest.mark.parametrize("bounded", BOUNDED)
def test_hard_swish(bounded: str, outer: str) -> None:
    source = text(f"{BOUNDED[bounded]} {SWISH[outer]}")
    model = becomes({"HardSwish": 1}, source, STEP, FEEDS)
    assert model.graph[0].outputs[0].name == "y"


def test_before_opset_14_it_is_a_product() -> None:
    source = text(f"{BOUNDED['clip']} {SWISH['last']}", opset=11)
    becomes({"HardSigmoid": 1, "Mul": 1}, source, STEP, FEEDS)


@pytest.mark.parametrize("outer", ["y = Div(b, six)", "y = Mul(sixth, b)"])
@pytest.mark.parametrize("bounded", BOUNDED)
def test_hard_sigmoid(bounded: str, outer: str) -> None:
    becomes({"HardSigmoid": 1}, text(f"{BOUNDED[bounded]} {outer}"), STEP, FEEDS)


def test_hard_sigmoid_of_any_line() -> None:
    source = text("s = Mul(x, half) a = Add(s, half) y = Clip(a, zero, one)")
    model = becomes({"HardSigmoid": 1}, source, STEP, FEEDS)
    assert model.graph[0].attributes["alpha"].value == 0.5


def test_a_hard_sigmoid_times_its_input() -> None:
    body = "h = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) y = Mul(h, x)"
    becomes({"HardSwish": 1}, text(body), STEP, FEEDS)
    left_alone(text(body, opset=13), STEP)


def test_a_gate_on_another_value_stays_a_gate() -> None:
    body = f"z = Tanh(x) {BOUNDED['clip']} m = Mul(z, b) y = Div(m, six)"
    left_alone(text(body), STEP)
    body = f"z = Tanh(x) {BOUNDED['clip']} m = Div(b, six) y = Mul(z, m)"
    becomes({"Tanh": 1, "HardSigmoid": 1, "Mul": 1}, text(body), STEP, FEEDS)


@pytest.mark.parametrize(
    ("old", "new"), [("three = {3}", "three = {2}"), ("Clip(a, zero, six)", "Clip(a, three, six)")]
)
def test_other_constants_are_no_hard_swish(old: str, new: str) -> None:
    source = text(f"{BOUNDED['clip']} {SWISH['last']}").replace(old, new)
    left_alone(source, STEP)


def test_a_bounded_sum_is_no_hard_sigmoid() -> None:
    left_alone(text("a = Add(x, half) y = Clip(a, zero, one)"), STEP)


def test_what_is_read_elsewhere_is_named() -> None:
    body = f"{BOUNDED['clip']} {SWISH['last']} z = Neg(a)"
    left_alone(text(body, more=", float[n, 5] z"), STEP, "read elsewhere")


def test_a_constant_that_widens_is_named() -> None:
    body = f"{BOUNDED['clip']} m = Mul(x, b) y = Div(m, wide)"
    left_alone(text(body).replace("[n, 5] y", "[1, n, 5] y"), STEP, "higher rank")


def test_double_has_no_kernel() -> None:
    left_alone(text(f"{BOUNDED['clip']} {SWISH['last']}", kind="double"), STEP, "float64")


def test_in_a_branch() -> None:
    source = f"""<ir_version: 8, opset_import: ["": 14]>
        g (float[n, 5] x, bool w) => (float[n, 5] z)
        <float three = {{3}}, float zero = {{0}}, float six = {{6}}> {{
        z = If(w) <
          then_branch = t () => (float[n, 5] y) {{ {BOUNDED["clip"]} {SWISH["last"]} }},
          else_branch = f () => (float[n, 5] d) {{ d = Neg(x) }}> }}"""
    feeds = [{"x": normal(2, 5), "w": np.array(w)} for w in (True, False)]
    becomes({"If": 1, "HardSwish": 1, "Neg": 1}, source, STEP, feeds)
