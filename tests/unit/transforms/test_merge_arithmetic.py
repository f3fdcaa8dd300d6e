"""Arithmetic with constants in a row, and what must not be merged."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import becomes, leaves, model_of, normal, ops, transformed

from ortune.graph.ir import edit
from ortune.transforms.merge_arithmetic import MergeArithmetic

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
CONSTANTS = """float a = {0.5}, float b = {-1.25}, float[3, 1] c = {0.2, 3, -4},
    float[1, 3, 1] c3 = {0.2, 3, -4}, float[3] d = {1, 2, 4}, float big = {12582912},
    float[1] e = {2}, float half = {0.5}, float zero = {0}, float huge = {1e30},
    float tiny = {1e-30}, int64[2] flat = {-1, 12}, float[2, 1, 1, 1] wide = {1, 2}"""


def text(body: str) -> str:
    return f"""{HEAD} g (float[n, 3, 4] x) => (float[k, l, m] y)
        <{CONSTANTS}> {{ {body} }}"""


FEEDS = [{"x": normal(n, 3, 4)} for n in (2, 1, 0)]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("t = Mul(x, a) u = Add(t, b) y = Mul(u, c)", {"Mul": 1, "Add": 1}),
        ("t = Sub(x, b) u = Div(t, c) y = Div(u, e)", {"Add": 1, "Mul": 1}),
        ("t = Sub(b, x) u = Neg(t) y = Add(c, u)", {"Add": 1}),
        ("t = Mul(x, e) y = Mul(half, t)", {"Mul": 2}),
        ("r = Relu(x) t = Mul(r, e) u = Mul(half, t) y = Neg(u)", {"Relu": 1, "Neg": 0, "Mul": 1}),
        ("r = Relu(x) t = Mul(r, e) u = Mul(half, t) y = Relu(u)", {"Relu": 2}),
        ("t = Add(x, b) u = Add(c, t) y = Sub(u, c)", {"Add": 1}),
        ("t = Mul(x, c) p = Transpose<perm = [1, 0, 2]>(t) y = Mul(p, a)",
         {"Transpose": 1, "Mul": 1}),
        ("t = Mul(x, c3) p = Transpose<perm = [2, 1, 0]>(t) u = Mul(p, c) y = Add(u, a)",
         {"Transpose": 1, "Mul": 1, "Add": 1}),
        ("t = Mul(x, e) p = Reshape(t, flat) u = Div(p, a) q = Unsqueeze(u, i) y = Mul(q, e)",
         {"Reshape": 1, "Unsqueeze": 1, "Mul": 1}),
        ("t = Mul(x, zero) u = Mul(t, c) y = Add(u, b)", {"Mul": 1, "Add": 1}),
    ],
)  # fmt: skip
def test_one_product_and_one_sum_are_left(body: str, left: dict[str, int]) -> None:
    source = text(body).replace("float a", "int64[1] i = {0}, float a")
    feeds = FEEDS[:2] if "Reshape" in body else FEEDS
    leaves({op: count for op, count in left.items() if count}, source, MergeArithmetic(), feeds)


@pytest.mark.parametrize(
    "body",
    [
        "t = Mul(x, a) y = Add(t, b)",
        "t = Sub(x, b) y = Div(t, c)",
        "t = Div(a, x) u = Div(b, t) y = Neg(u)",
        "t = Mul(x, a) u = Mul(t, b) z = Relu(t) y = Add(u, z)",
        "t = Mul(x, c) p = Reshape(t, flat) y = Mul(p, a)",
        "t = Mul(x, huge) u = Mul(t, huge) v = Add(u, a) y = Sign(v)",
        "t = Mul(x, tiny) u = Mul(t, tiny) y = Mul(u, tiny)",
        "t = Add(x, wide) p = Transpose<perm = [1, 0, 2, 3]>(t) y = Add(p, a)",
    ],
)
def test_what_gains_nothing_or_is_no_chain_stays(body: str) -> None:
    before = model_of(text(body))
    becomes(ops(before), before, MergeArithmetic(), FEEDS[:2], tolerance=0, count=0)


def test_sums_that_round_on_purpose_are_left_and_named() -> None:
    model = becomes(
        {"Add": 1, "Sub": 1, "Mul": 1},
        text("t = Add(x, big) u = Sub(t, big) y = Mul(u, a)"),
        MergeArithmetic(),
        FEEDS,
        count=0,
    )
    assert "round on purpose" in edit.take_notes(model)


def test_shapes_that_constants_widen_are_kept() -> None:
    """The last factor is 1 everywhere and alone makes two of one."""
    source = f"""{HEAD} g (float[1, 4] x) => (float[k, 4] y)
        <float[2, 1] up = {{0, 0}}, float a = {{2}}, float b = {{3}}> {{
        t = Mul(x, a) u = Add(t, up) y = Mul(u, b) }}"""
    becomes({"Mul": 1}, source, MergeArithmetic(), [{"x": normal(1, 4)}], count=2)


@pytest.mark.parametrize(
    ("kind", "numbers", "wanted"),
    [
        ("double", (0.5, 0.25, 3.0), None),
        ("float16", (0.5, 0.25, 3.0), None),
        ("int64", (100, 50, 3), None),
        ("int8", (100, 50, 3), {3, -(150 * 3) - 50 + 512}),
    ],
)
def test_other_types(kind: str, numbers: tuple[float, ...], wanted: set[int] | None) -> None:
    """No runtime adds int8: there the constants alone are looked at, with their overflow."""
    model = model_of(f"""{HEAD} g ({kind}[n] x, {kind} a, {kind} b, {kind} c) => ({kind}[n] y) {{
        t = Sub(x, a) u = Sub(t, b) v = Mul(u, c) w = Sub(b, v) y = Neg(w) }}""")
    dtype = np.dtype(kind)
    for value, number in zip(list(model.graph.inputs)[1:], numbers, strict=True):
        value.const_value = ir.tensor(np.array(number, dtype), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    feeds = [{"x": (np.arange(-4, 5) * 3).astype(dtype)}] if wanted is None else []
    tolerance = 2e-3 if kind == "float16" else 1e-6
    after = model.clone()
    if wanted is None:
        after, count = transformed(model, MergeArithmetic(), feeds, tolerance=tolerance)
    else:
        count = MergeArithmetic().apply(after)
        held = [value.const_value for value in after.graph.initializers.values()]
        assert {tensor.numpy().item() for tensor in held if tensor is not None} == wanted
    assert count == 3 and ops(after) == {"Mul": 1, "Add": 1}


def test_integers_are_not_divided() -> None:
    source = f"""{HEAD} g (int64[n] x) => (int64[n] y) <int64 a = {{2}}, int64 b = {{3}}> {{
        t = Div(x, a) u = Div(t, b) v = Mul(u, a) y = Mul(v, b) }}"""
    model, _ = transformed(source, MergeArithmetic(), [{"x": np.arange(40)}])
    assert ops(model)["Div"] == 2


def test_a_number_of_rank_0_stays_one() -> None:
    source = f"""{HEAD} g (float x) => (float y) <float a = {{2}}, float b = {{3}}> {{
        t = Mul(x, a) y = Mul(t, b) }}"""
    model = becomes({"Mul": 1}, source, MergeArithmetic(), [{"x": normal()}], count=1)
    (node,) = model.graph
    assert edit.shape_of(node.inputs[1]) == ()
