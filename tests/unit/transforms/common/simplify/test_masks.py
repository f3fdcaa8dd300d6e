"""Masks that exporters compute number by number: what is left is the input, seen as a mask."""

import numpy as np
import pytest
from tests.unit.rewriting import leaves, normal, ops, transformed

from ortune.transforms.simplify import Simplify

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
CONSTANTS = """int64 i0 = {0}, int64 i1 = {1}, int64[1] a0 = {0}, int64[1] a1 = {1},
    int64[1] a2 = {2}, int64[1] a3 = {3}, int64[2] a12 = {1, 2}, int64[2] a01 = {0, 1},
    int64[1] last = {-1}, float nil = {0}, float low = {-3e38}, bool yes = {1}"""
SIZES = """s0 = Shape(mask) b = Gather(s0, i0) n = Gather(s0, i1)
    rows = Range(i0, b, i1) columns = Range(i0, n, i1)
    r = Unsqueeze(rows, a1) r3 = Unsqueeze(r, a12) c = Unsqueeze(columns, a0)
    c3 = Unsqueeze(c, a12) q = Unsqueeze(columns, a01) q4 = Unsqueeze(q, a3)"""
FEEDS = [
    {"mask": np.array([[1, 1, 0], [1, 0, 0]]) > 0, "x": normal(2, 4, 3, 3)},
    {"mask": np.ones((1, 1), bool), "x": normal(1, 4, 1, 1)},
    {"mask": np.ones((0, 3), bool), "x": normal(0, 4, 3, 3)},
]


def text(body: str) -> str:
    return f"""{HEAD} g (bool[b, n] mask, float[b, 4, n, n] x) => (float[b, 4, n, n] y)
        <{CONSTANTS}> {{ {SIZES} {body} }}"""


@pytest.mark.parametrize(
    "body",
    [
        # as the exporter of today writes it
        """m = Max(r3, c3) wide = Shape(m) r4 = Expand(r3, wide) c4 = Expand(c3, wide)
        r5 = Unsqueeze(r4, last) c5 = Unsqueeze(c4, last) at = Concat<axis = -1>(r5, c5)
        g = GatherND(mask, at) w = Where(g, nil, low) y = Add(x, w)""",
        # as the tracing exporter writes it, the true half of the mask included
        """flat = Flatten<axis = 2>(mask) n1 = Unsqueeze(n, a0) step = Mul(r3, n1)
        at = Add(c3, step) g = Gather<axis = 0>(flat, at) shape = Shape(at)
        line = Reshape(g, last) h = Reshape(line, shape)
        ge = GreaterOrEqual(q4, i0) true = And(yes, ge) both = And(true, h)
        b1 = Unsqueeze(b, a0) to = Concat<axis = 0>(b1, a1, n1, n1) e = Expand(both, to)
        w = Where(e, nil, low) y = Add(x, w)""",
    ],
)
def test_a_gather_of_all_positions_is_the_tensor(body: str) -> None:
    leaves({"Unsqueeze": 1, "Where": 1, "Add": 1}, text(body), Simplify(), FEEDS)


@pytest.mark.parametrize(
    "body",
    [
        # the columns come first
        """s = Unsqueeze(r3, last) t = Unsqueeze(c3, last) m = Max(s, t) wide = Shape(m)
        s5 = Expand(s, wide) t5 = Expand(t, wide) at = Concat<axis = -1>(t5, s5)
        big = Concat<axis = 0>(mask, mask) turned = Transpose<perm = [1, 0]>(mask)
        g = GatherND(turned, at) w = Where(g, nil, low) y = Add(x, w)""",
        # from 1 on
        """one = Sub(columns, i1) o = Unsqueeze(one, a0) o3 = Unsqueeze(o, a12)
        m = Max(r3, o3) m2 = Max(m, c3) wide = Shape(m2) s = Expand(r3, wide) t = Expand(o3, wide)
        s5 = Unsqueeze(s, last) t5 = Unsqueeze(t, last) at = Concat<axis = -1>(s5, t5)
        g = GatherND(mask, at) w = Where(g, nil, low) y = Add(x, w)""",
        # a step that is not the length
        """flat = Flatten<axis = 2>(mask) step = Mul(r3, i1) at = Add(c3, step)
        g = Gather<axis = 0>(flat, at) h = Squeeze(g, last) w = Where(h, nil, low)
        y = Add(x, w)""",
    ],
)
def test_other_positions_are_gathered(body: str) -> None:
    model, _ = transformed(text(body), Simplify(), FEEDS[:2])
    assert ops(model).get("GatherND", 0) + ops(model).get("Gather", 0) > 0


@pytest.mark.parametrize("op", ["Greater", "LessOrEqual", "Less"])
def test_a_comparison_that_is_not_always_true_stays(op: str) -> None:
    body = f"""ge = {op}(q4, i0) m1 = Unsqueeze(mask, a1) m3 = Unsqueeze(m1, a1)
        both = And(ge, m3) w = Where(both, nil, low) y = Add(x, w)"""
    model, _ = transformed(text(body), Simplify(), FEEDS)
    assert ops(model)["And"] == 1 and ops(model)[op] == 1


@pytest.mark.parametrize("reader", ["y = Softmax<axis = -2>(w)", "y = Neg(w)", "y = Min(w, w)"])
def test_what_is_read_as_wide_stays_wide(reader: str) -> None:
    body = f"""m1 = Unsqueeze(mask, a1) m3 = Unsqueeze(m1, a1) wide = Shape(x)
        e = Expand(m3, wide) w = Where(e, nil, low) {reader}"""
    model, _ = transformed(text(body), Simplify(), FEEDS)
    assert ops(model)["Expand"] == 1


def test_a_mask_that_is_an_output_too_stays_wide() -> None:
    body = """m1 = Unsqueeze(mask, a1) m3 = Unsqueeze(m1, a1) wide = Shape(x)
        e = Expand(m3, wide) z = Where(e, nil, low) y = Add(x, z)"""
    wide = text(body).replace("n] y)", "n] y, float[b, 4, n, n] z)")
    model, _ = transformed(wide, Simplify(), FEEDS)
    assert ops(model)["Expand"] == 1


def test_lengths_are_taken_by_one_node() -> None:
    body = """n1 = Unsqueeze(n, a0) part = Slice(x, a0, n1, a3) y = Slice(part, a0, n1, a2)"""
    source = (
        text(body).replace("b, 4, n, n] x", "b, 4, k, l] x").replace("4, n, n] y", "4, v, w] y")
    )
    leaves({"Shape": 1, "Slice": 2}, source, Simplify(), FEEDS)
