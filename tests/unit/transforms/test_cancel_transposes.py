"""Transposes around arithmetic, and those that something else reads."""

from __future__ import annotations

import pytest
from tests.unit.rewriting import model_of, normal, ops, transformed

from ortune.transforms.cancel_transposes import CancelTransposes

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
TO, BACK = "Transpose<perm = [0, 2, 3, 1]>", "Transpose<perm = [0, 3, 1, 2]>"
TURN = "Transpose<perm = [3, 0, 2, 1]>"


def text(body: str) -> str:
    return f"""{HEAD} g (float[n, 3, 4, 5] x, float[n, 3, 4, 5] z) => (float[a, b, c, d] y)
        <float[3] row = {{1, 2, 3}}, float one = {{1}}, float[4, 1, 3] some = {{1, 2, 3, 4, 5, 6,
         7, 8, 9, 10, 11, 12}}, float[1, 1, 1, 1, 1] deep = {{1}}> {{ {body} }}"""


FEEDS = [{"x": normal(n, 3, 4, 5), "z": normal(n, 3, 4, 5, seed=1)} for n in (2, 1, 0)]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"t = {TO}(x) u = Relu(t) y = {BACK}(u)", 0),
        (f"t = {TO}(x) u = Add(t, row) v = Mul(some, u) w = Sigmoid(v) y = {BACK}(w)", 0),
        (f"t = {TO}(x) u = {TO}(z) v = Sub(t, u) w = Div(one, v) y = {BACK}(w)", 0),
        (f"t = {TO}(x) u = {TO}(z) v = Sub(t, u) y = Relu(v)", 1),
        (f"t = {TO}(x) u = Softmax<axis = -1>(t) y = {BACK}(u)", 0),
        (f"t = {TO}(x) u = Softmax<axis = 1>(t) y = {TURN}(u)", 1),
        (f"t = {TO}(x) u = Relu(t) v = {BACK}(u) w = {BACK}(t) y = Add(v, w)", 0),
        (f"t = {TO}(x) u = Relu(t) v = Neg(u) w = Abs(u) s = Add(v, w) y = {BACK}(s)", 0),
        (f"t = {TO}(x) u = Clip(t, one) y = {BACK}(u)", 0),
    ],
)
def test_transposes_go(body: str, left: int) -> None:
    model, count = transformed(text(body), CancelTransposes(), FEEDS)
    assert count > 0 and ops(model).get("Transpose", 0) == left


@pytest.mark.parametrize(
    "body",
    [
        f"t = {TO}(x) y = Relu(t)",
        f"t = {TO}(x) u = Relu(t) v = Add(u, z0) y = {BACK}(v)",
        f"t = {TO}(x) u = ReduceMax<axes = [1], keepdims = 1>(t) y = {BACK}(u)",
        f"t = {TURN}(x) u = {TO}(z) v = Concat<axis = 2>(t, t) y = Relu(v)",
    ],
)
def test_transposes_that_are_needed_stay(body: str) -> None:
    source = text(body).replace("[n, 3, 4, 5] z", "[n, 3, 4, 5] z, float[n, 4, 5, 3] z0")
    feeds = [{**feed, "z0": normal(len(feed["x"]), 4, 5, 3, seed=2)} for feed in FEEDS]
    before = model_of(source)
    model, count = transformed(before, CancelTransposes(), feeds)
    assert count == 0 and ops(model) == ops(before)


def test_an_output_between_them_gets_its_own() -> None:
    source = text(f"t = {TO}(x) q = {TO}(z) w = Add(t, q) u = Relu(w) y = {BACK}(u)").replace(
        "d] y)", "d] y, float[e, f, g, h] u)"
    )
    model, count = transformed(source, CancelTransposes(), FEEDS)
    assert count == 2 and ops(model)["Transpose"] == 1
    assert [value.name for value in model.graph.outputs] == ["y", "u"]
