"""Gemm and MatMul with Add become each other, exactly."""

from __future__ import annotations

import pytest
from tests.unit.rewriting import model_of, normal, ops, transformed

from ortune.model.graph.edit import take_notes
from ortune.transforms.gemm_to_matmul import GemmToMatmul
from ortune.transforms.matmul_to_gemm import MatmulToGemm


def gemm(attributes: str, weight: str, x: str, bias: str = "") -> str:
    return f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[{x}] x) => (float[n, 2] y) <float{weight} = {{1, 2, 3, 4, 5, 6}}{bias}> {{
            y = Gemm <{attributes}> (x, w{", c" if bias else ""})
        }}
    """


@pytest.mark.parametrize("bias", ["", ", float[2] c = {3, 4}", ", float c = {3}"])
@pytest.mark.parametrize(("a", "b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm_comes_apart(a: int, b: int, bias: str) -> None:
    text = gemm(
        f"alpha: float = 0.5, beta: float = 2.0, transA: int = {a}, transB: int = {b}",
        "[2, 3] w" if b else "[3, 2] w",
        "3, n" if a else "n, 3",
        bias,
    )
    feeds = [{"x": normal(3, n) if a else normal(n, 3)} for n in (1, 4)]
    after, count = transformed(text, GemmToMatmul(), feeds, tolerance=1e-6, may_grow=True)
    wanted = {"MatMul": 1} | ({"Transpose": 1} if a else {}) | ({"Add": 1} if bias else {})
    assert count == 1 and ops(after) == wanted


def test_a_shared_weight_that_would_be_copied_stays() -> None:
    model = model_of("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 2] x) => (float[n, 2] y, float[n, 2] z) <float[2, 2] w = {1, 2, 3, 4}> {
            y = Gemm <transB: int = 1> (x, w)  z = MatMul(x, w)
        }
    """)
    assert GemmToMatmul().apply(model) == 0 and "read elsewhere" in take_notes(model)


@pytest.mark.parametrize(
    "bias", ["float[2] c = {3, 4}", "float[1, 2] c = {3, 4}", "float c = {3}"]
)
def test_matrices_and_a_bias_become_gemm(bias: str) -> None:
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}, {bias}> {{
            p = MatMul(x, w)  y = Add(c, p)
        }}
    """
    after, count = transformed(text, MatmulToGemm(), [{"x": normal(n, 3)} for n in (1, 5)])
    assert count == 1 and ops(after) == {"Gemm": 1}


def test_what_is_no_matrix_or_no_bias_stays() -> None:
    for x, bias in (("n, t, 3", "float[2] c = {3, 4}"), ("2, 3", "float[2, 1] c = {3, 4}")):
        model = model_of(f"""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[{x}] x) => (float y) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}, {bias}> {{
                p = MatMul(x, w)  a = Add(p, c)  y = ReduceMax <keepdims: int = 0> (a)
            }}
        """)
        assert MatmulToGemm().apply(model) == 0
