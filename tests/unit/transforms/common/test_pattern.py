"""The rewriter replaces patterns in every graph and keeps off what is not its own."""

from __future__ import annotations

from typing import Any

from tests.unit.rewriting import model_of, ops

from ortune.transforms.common.user_rule import replace_matches

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def find(op: Any, x: Any, y: Any) -> Any:
    return op.Neg(op.Add(x, op.Exp(y)))


def put(op: Any, x: Any, y: Any) -> Any:
    return op.Sub(op.Neg(x), op.Exp(y))


def test_either_order_and_every_graph() -> None:
    text = f"""{HEAD} g (float[n] x, bool c) => (float[n] y) {{
        e = Exp(x) a = Add(e, x) t = Neg(a)
        y = If(c) <
          then_branch = p () => (float[n] q) {{ f = Exp(x) b = Add(t, f) q = Neg(b) }},
          else_branch = r () => (float[n] s) {{ s = Abs(t) }}> }}"""
    model = model_of(text)
    assert replace_matches(model, find, put) == 2
    assert ops(model) == {"Neg": 2, "Exp": 2, "Sub": 2, "If": 1, "Abs": 1}
    names = [node.name for node in model.graph.all_nodes()]
    assert all(names) and len(set(names)) == len(names)


def test_a_condition_decides() -> None:
    text = f"{HEAD} g (float[n] x) => (float[n] y) {{ e = Exp(x) a = Add(e, x) y = Neg(a) }}"
    model = model_of(text)
    assert replace_matches(model, find, put, lambda context, x, y: False) == 0
    assert replace_matches(model, [find], put, lambda context, x, y: x is y) == 1


def test_a_part_that_is_read_elsewhere_is_left() -> None:
    text = f"""{HEAD} g (float[n] x) => (float[n] y, float[n] z) {{
        e = Exp(x) a = Add(e, x) y = Neg(a) z = Abs(a) }}"""
    assert replace_matches(model_of(text), find, put) == 0


def test_the_default_of_an_input_is_no_constant() -> None:
    text = f"""{HEAD} g (float[n] x, float w) => (float[n] y) <float w = {{1}}> {{
        e = Exp(w) a = Add(x, e) y = Neg(a) }}"""
    assert replace_matches(model_of(text), find, put) == 0
