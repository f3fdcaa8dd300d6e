"""Softmax and LogSoftmax written out, and what only looks like them."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, normal, transformed

from ortune.transforms.fuse_softmax import FuseSoftmax

STEP = FuseSoftmax()
FEEDS = [
    {"x": normal(2, 3, 4) * 5},
    {"x": np.full((1, 3, 4), 1e30, np.float32)},
    {"x": normal(0, 3, 4)},
]
LAST = {
    "div": ("y = Div(e, s)", "Softmax"),
    "reciprocal": ("r = Reciprocal(s) y = Mul(r, e)", "Softmax"),
    "log": ("l = Log(s) y = Sub(d, l)", "LogSoftmax"),
}


def text(last: str, *, opset: int = 18, axis: int = -1, kind: str = "float", out: str = "") -> str:
    more = f"<axes = [{axis}]>" if opset < 18 else ""
    old = f"<axes = [{axis}]>" if opset < 13 else ""
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({kind}[n, 3, 4] x) => ({kind}[n, 3, 4] y{out}) <int64[1] a = {{{axis}}}> {{
        m = ReduceMax{more}(x{"" if more else ", a"}) d = Sub(x, m) e = Exp(d)
        s = ReduceSum{old}(e{"" if old else ", a"}) {last} }}"""


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("last", LAST)
def test_spellings(last: str, opset: int) -> None:
    body, op = LAST[last]
    becomes({op: 1}, text(body, opset=opset), STEP, FEEDS)


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_other_axes(axis: int) -> None:
    model, count = transformed(text(LAST["div"][0], axis=axis), STEP, FEEDS[:2])
    assert count == 1 and model.graph[0].attributes["axis"].value == axis


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (text(LAST["div"][0], opset=11, axis=1), "before opset 13"),
        (text(LAST["div"][0], kind="double"), "float64"),
        (text("y = Div(e, s) z = Neg(e)", out=", float[n, 3, 4] z"), "read elsewhere"),
        (text("y = Div(s, e)"), "read elsewhere"),
        (text("y = Div(d, s)"), "read elsewhere"),
        (text("l = Log(s) y = Sub(x, l)"), "read elsewhere"),
    ],
)
def test_refusals_have_a_reason(source: str, why: str) -> None:
    left_alone(source, STEP, why)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("d = Sub(x, m)", "d = Sub(m, x)"),
        ("d = Sub(x, m)", "d = Identity(x)"),
        ("ReduceMax(x, a)", "ReduceMax<keepdims = 1>(x)"),
    ],
)
def test_something_else(old: str, new: str) -> None:
    source = text("y = Div(e, s)")
    assert old in source
    left_alone(source.replace(old, new), STEP)
