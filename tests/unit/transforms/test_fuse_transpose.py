"""Transposes that a matrix product takes over."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.rewriting import model_of, normal, ops, transformed

from ortune.model.graph.edit import take_notes
from ortune.transforms.fuse_transpose import FuseTranspose

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
T = "Transpose<perm = [1, 0]>"


def text(body: str) -> str:
    return f"""{HEAD} g (float[n, 3] x, float[n, 3] z) => (float[a, b] y)
        <float one = {{1}}, int64[3] deep = {{1, -1, 3}}, int64[2] flat = {{-1, 3}}>
        {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"t = {T}(x) y = Gemm(t, z)", {"Gemm": 1}),
        (f"t = {T}(x) y = Gemm<transB = 1>(t, t3)", {"Gemm": 1}),
        (f"t = {T}(z) y = Gemm<alpha = 2.0>(x, t, one)", {"Gemm": 1}),
        (f"t = {T}(x) y = MatMul(t, z)", {"Gemm": 1}),
        (f"t = {T}(z) y = MatMul(x, t)", {"Gemm": 1}),
        ("t = Transpose(z) y = MatMul(x, t)", {"Gemm": 1}),
        (f"s = {T}(x) m = MatMul(x, t4) t = {T}(m) y = MatMul(s, t)", {"MatMul": 1, "Gemm": 1}),
    ],
)  # fmt: skip
def test_products_take_transposes_over(body: str, left: dict[str, int]) -> None:
    source = text(body).replace("z) =>", "z, float[k, n] t3, float[3, n] t4) =>")
    feeds = [
        {"x": normal(n, 3), "z": normal(n, 3, seed=1), "t3": normal(2, n), "t4": normal(3, n)}
        for n in (4, 1, 0)
    ]
    model, count = transformed(source, FuseTranspose(), feeds)
    assert count > 0 and ops(model) == left


@pytest.mark.parametrize(
    "body",
    [
        "d = Reshape(z, deep) t = Transpose<perm = [0, 2, 1]>(d) m = MatMul(x, t) y = Squeeze(m)",
        f"t = {T}(z) u = Relu(t) v = MatMul(x, u) m = MatMul(x, t) y = Add(m, v)",
        "y = MatMul(x, q)",
        f"i = Cast<to = 7>(x) t = {T}(i) m = MatMul(i, t) y = Cast<to = 1>(m)",
    ],
)
def test_others_stay(body: str) -> None:
    source = text(body).replace("z) =>", "z, float[3, 2] q) =>")
    before = model_of(source)
    feed = {"x": normal(2, 3), "z": normal(2, 3, seed=1), "q": normal(3, 2)}
    model, count = transformed(before, FuseTranspose(), [feed])
    assert count == 0 and ops(model) == ops(before)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"t = {T}(z) u = Relu(t) v = MatMul(x, u) m = MatMul(x, t) y = Add(m, v)", "elsewhere"),
        (f"r = Relu(z) t = {T}(r) y = MatMul(x, t)", "may be undone"),
    ],
)
def test_refusals_have_a_reason(body: str, why: str) -> None:
    model = model_of(text(body))
    assert FuseTranspose().apply(model) == 0
    assert why in take_notes(model)


def test_a_table_that_is_the_last_layer_too() -> None:
    numbers = ", ".join(f"{x:.2f}" for x in normal(20))
    source = f"""{HEAD} g (int64[n] ids) => (float[n, 5] y) <float[5, 4] w = {{{numbers}}}> {{
        e = Gather(w, ids) t = {T}(w) y = MatMul(e, t) }}"""
    feeds = [{"ids": np.arange(n) % 5} for n in (7, 1, 0)]
    model, count = transformed(source, FuseTranspose(), feeds)
    assert count == 1 and ops(model) == {"Gather": 1, "Gemm": 1}
