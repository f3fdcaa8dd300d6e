"""Bounds in all spellings become one Clip or Relu."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, normal

from ortune.transforms.fuse_clip import FuseClip

STEP = FuseClip()
FEEDS = [{"x": normal(2, 5) * 9}, {"x": np.array([[-np.inf, -6, 0, 6, np.inf]], np.float32)}]


def text(body: str, *, opset: int = 18, kind: str = "float", more: str = "") -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({kind}[n, 5] x) => ({kind}[n, 5] y{more})
        <{kind} zero = {{0}}, {kind}[1] one = {{1}}, {kind} six = {{6}}, {kind} minus = {{-2}},
         {kind}[1, 1, 1] wide = {{0}}, {kind}[5] many = {{0, 1, 2, 3, 4}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "op"),
    [
        ("y = Max(x, zero)", "Relu"),
        ("y = Max(zero, x)", "Relu"),
        ("a = Relu(x) y = Min(a, six)", "Clip"),
        ("a = Min(x, six) y = Relu(a)", "Clip"),
        ("a = Clip(x, minus, six) y = Clip(a, one, )", "Clip"),
        ("a = Max(x, minus) b = Min(a, six) y = Clip(b, one, six)", "Clip"),
        ("a = Relu(x) y = Relu(a)", "Relu"),
        ("a = Min(x, minus) y = Max(a, one)", "Clip"),
        ("a = Max(x, six) y = Min(a, one)", "Clip"),
    ],
)
@pytest.mark.parametrize("opset", [11, 18])
def test_spellings(body: str, op: str, opset: int) -> None:
    becomes({op: 1}, text(body, opset=opset), STEP, FEEDS, tolerance=0)


def test_bounds_as_attributes() -> None:
    source = text("a = Relu(x) y = Clip<min = 1.0, max = 6.0>(a)", opset=10)
    model = becomes({"Clip": 1}, source, STEP, FEEDS, tolerance=0)
    assert {k: v.value for k, v in model.graph[0].attributes.items()} == {"min": 1.0, "max": 6.0}


@pytest.mark.parametrize(
    "body",
    [
        "y = Clip(x, zero, six)",
        "y = Relu(x)",
        "y = Max(x, one)",
        "y = Min(six, x)",
        "a = Max(x, one) y = Max(a, six)",
        "y = Max(x, wide)",
        "y = Max(x, many)",
        "a = Neg(x) y = Max(x, a)",
    ],
)
def test_nothing_to_gain(body: str) -> None:
    source = text(body)
    if "wide" in body:
        source = source.replace("[n, 5] y", "[1, n, 5] y")
    left_alone(source, STEP)


def test_an_inner_bound_that_is_read_stays() -> None:
    source = text(
        "a = Max(x, minus) b = Clip(a, zero, six) y = Min(b, one)", more=", float[n, 5] a"
    )
    becomes({"Max": 1, "Clip": 1}, source, STEP, FEEDS, tolerance=0)


def test_integers_are_left_alone() -> None:
    left_alone(text("y = Max(x, zero)", kind="int64"), STEP)


def test_a_long_row_is_one_edit() -> None:
    body = "a = Relu(x) b = Relu(a) c = Min(b, six) d = Relu(c) y = Clip(d, zero, six)"
    becomes({"Clip": 1}, text(body), STEP, FEEDS, tolerance=0)
