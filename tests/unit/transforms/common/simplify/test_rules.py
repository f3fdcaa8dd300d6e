"""Rules of simplify: casts, limits, reshapes, equal nodes, zero states, what does nothing."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import leaves, model_of, normal, ops, transformed

from ortune.graph.ir import edit
from ortune.transforms.common.simplify import constants
from ortune.transforms.simplify import Simplify, converts_exactly

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


@pytest.mark.parametrize(
    ("narrow", "wide", "wanted"),
    [
        ("INT32", "INT64", True),
        ("INT64", "INT32", False),
        ("UINT8", "INT16", True),
        ("UINT8", "INT8", False),
        ("INT8", "UINT64", False),
        ("FLOAT16", "FLOAT", True),
        ("FLOAT", "FLOAT16", False),
        ("FLOAT", "BFLOAT16", False),
        ("FLOAT16", "BFLOAT16", False),
        ("BFLOAT16", "FLOAT16", False),
        ("INT32", "FLOAT", False),
        ("INT32", "DOUBLE", True),
        ("INT64", "DOUBLE", False),
        ("INT16", "FLOAT", True),
        ("UINT16", "FLOAT16", False),
        ("INT8", "FLOAT16", True),
        ("INT8", "BFLOAT16", True),
        ("INT16", "BFLOAT16", False),
        ("BOOL", "UINT8", True),
        ("BOOL", "FLOAT16", True),
        ("INT8", "BOOL", False),
        ("FLOAT", "INT64", False),
        ("INT4", "INT8", False),
    ],
)
def test_which_types_hold_which(narrow: str, wide: str, wanted: bool) -> None:
    assert converts_exactly(ir.DataType[wide], ir.DataType[narrow]) is wanted


@pytest.mark.parametrize(
    ("kind", "first", "second", "left"),
    [
        ("int32", 7, 1, {"Cast": 1}),
        ("float", 11, 1, {}),
        ("int64", 6, 7, {"Cast": 2}),
        ("float", 10, 1, {"Cast": 2}),
        ("float", 7, 1, {"Cast": 2}),
        ("bool", 1, 7, {"Cast": 1}),
        ("float", 9, 1, {"Cast": 2}),
        ("int32", 1, 11, {"Cast": 2}),
        ("int32", 11, 6, {}),
    ],
)
def test_casts(kind: str, first: int, second: int, left: dict[str, int]) -> None:
    """Numbers at the edge of each type: a cast in the middle that changes them stays."""
    to = {1: "float", 6: "int32", 7: "int64", 11: "double"}[second]
    text = f"""{HEAD} g ({kind}[n] x) => ({to}[n] y) {{
        t = Cast<to = {first}>(x) u = Cast<to = {second}>(t) y = Neg(u) }}"""
    if kind == "bool":
        feed: np.ndarray = np.array([True, False])
    elif kind == "float":
        feed = np.array([0.1, -0.1, 65504.0, 3.7, -2.5], np.float32)
    else:
        feed = np.array([2**31 - 1, -(2**31) + 1, 16777217, 0], np.dtype(kind))
        feed = np.append(feed, np.array([2**31 + 5])) if kind == "int64" else feed
    leaves({"Neg": 1, **left}, text, Simplify(), [{"x": feed}, {"x": feed[:0]}], tolerance=0)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("t = Clip(x, a, b) y = Clip(t, c, d)", {"Clip": 1}),
        ("t = Relu(x) y = Clip(t, , b)", {"Clip": 1}),
        ("t = Clip(x, , b) y = Relu(t)", {"Clip": 1}),
        ("t = Clip(x, c) y = Relu(t)", {"Clip": 1}),
        ("t = Clip(x, d) y = Clip(t, a, b)", {"Clip": 1}),
        ("t = Clip(x, b, a) y = Clip(t, c, d)", {"Clip": 2}),
        ("t = Clip(x, a, b) y = Clip(t, lim)", {"Clip": 2}),
        ("t = Clip(x, a, b) u = Relu(t) y = Add(t, u)", {"Clip": 1, "Relu": 1, "Add": 1}),
        ("t = Relu(x) u = Relu(t) y = Neg(u)", {"Relu": 1, "Neg": 1}),
        ("t = Sigmoid(x) u = Relu(t) y = Neg(u)", {"Sigmoid": 1, "Neg": 1}),
    ],
)
def test_limits(body: str, left: dict[str, int]) -> None:
    text = f"""{HEAD} g (float[n] x, float lim) => (float[n] y)
        <float a = {{-1}}, float b = {{0.5}}, float c = {{0.25}}, float d = {{2}}> {{ {body} }}"""
    values = np.array([-np.inf, -2, -1, -0.5, 0, 0.3, 0.5, 1, 3, np.inf], np.float32)
    lim = np.array(0.1, np.float32)
    feeds = [{"x": values[1:-1], "lim": lim}, {"x": values[:0], "lim": lim}]
    leaves(left, text, Simplify(), feeds, tolerance=0)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("t = Unsqueeze(x, i1) u = Squeeze(t, i1) y = Abs(u)", {"Abs": 1}),
        ("t = Unsqueeze(x, im) u = Squeeze(t, i3) y = Neg(u)", {"Neg": 1}),
        ("t = Unsqueeze(x, i0) u = Unsqueeze(t, i1) v = Unsqueeze(u, im) y = Neg(v)",
         {"Unsqueeze": 1, "Neg": 1}),
        (("t = Unsqueeze(x, i0) u = Unsqueeze(t, i0) v = Squeeze(u, i0) w = Squeeze(v, i0) "
         "y = Neg(w)"), {"Neg": 1}),
        ("t = Reshape(x, flat) y = Reshape(t, six)", {"Reshape": 1}),
        ("t = Flatten(x) y = Reshape(t, six)", {"Reshape": 1}),
        ("t = Transpose(x) u = Transpose(t) y = Neg(u)", {"Neg": 1}),
        ("t = Transpose<perm = [1, 0, 2]>(x) y = Transpose<perm = [2, 0, 1]>(t)",
         {"Transpose": 1}),
        ("t = Unsqueeze(x, i1) y = Squeeze(t)", {"Unsqueeze": 1, "Squeeze": 1}),
        ("t = Unsqueeze(x, i1) u = Unsqueeze(t, i0) v = Neg(t) y = Add(u, v)",
         {"Unsqueeze": 2, "Neg": 1, "Add": 1}),
    ],
)  # fmt: skip
def test_what_moves_no_number(body: str, left: dict[str, int]) -> None:
    text = f"""{HEAD} g (float[n, 3, 4] x) => (float y)
        <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] i3 = {{3}}, int64[1] im = {{-1}},
         int64[1] flat = {{-1}}, int64[2] six = {{6, -1}}> {{ {body} }}"""
    before = model_of(text)
    before.graph.outputs[0].shape = None
    feeds = [{"x": normal(n, 3, 4)} for n in ((2, 4) if "six" in body else (2, 1, 0))]
    if "Squeeze(t)" in body:
        feeds = feeds[:1]
    leaves(left, before, Simplify(), feeds, tolerance=0)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Exp(x) b = Exp(x) y = Mul(a, b)", {"Exp": 1, "Mul": 1}),
        ("a = Exp(x) b = Exp(x) c = Neg(a) d = Neg(b) y = Mul(c, d)",
         {"Exp": 1, "Neg": 1, "Mul": 1}),
        ("a = LeakyRelu<alpha = 0.1>(x) b = LeakyRelu<alpha = 0.2>(x) y = Mul(a, b)",
         {"LeakyRelu": 2, "Mul": 1}),
        (("a = RandomNormalLike(x) b = RandomNormalLike(x) c = Sub(a, b) d = Mul(c, zero) "
         "y = Add(d, x)"), {"RandomNormalLike": 2, "Sub": 1, "Mul": 1, "Add": 1}),
        ("a = Exp(x) y = Exp(x)", {"Exp": 1}),
        (("a, b = Split<axis = 0>(x, h) c, d = Split<axis = 0>(x, h) e = Mul(a, d) "
         "f = Mul(b, c) y = Concat<axis = 0>(e, f)"), {"Split": 1, "Mul": 2, "Concat": 1}),
    ],
)  # fmt: skip
def test_equal_nodes(body: str, left: dict[str, int]) -> None:
    text = f"""{HEAD} g (float[4] x) => (float[4] y) <float zero = {{0}}, int64[2] h = {{2, 2}}>
        {{ {body} }}"""
    leaves(left, text, Simplify(), [{"x": normal(4)}])


def test_a_body_uses_the_equal_node_around_it_but_not_the_other_way() -> None:
    text = f"""{HEAD} g (float[n] x, bool c) => (float[n] y) {{
        a = Exp(x)
        t = If(c) <then_branch = t () => (float[n] p) {{ b = Exp(x) s = Sin(b) p = Neg(s) }},
                   else_branch = e () => (float[n] q) {{ s = Sin(a) q = Abs(s) }}>
        d = Sin(a) y = Add(t, d) }}"""
    feeds = [{"x": normal(3), "c": np.array(c)} for c in (True, False)]
    leaves({"Exp": 1, "If": 1, "Sin": 3, "Neg": 1, "Abs": 1, "Add": 1}, text, Simplify(), feeds)


@pytest.mark.parametrize(
    ("op", "gates", "states"), [("LSTM", 4, "h, h"), ("GRU", 3, "h"), ("RNN", 1, "h")]
)
@pytest.mark.parametrize("value", [0, 1])
def test_states_of_zeros_are_what_a_layer_starts_from(
    op: str, gates: int, states: str, value: int
) -> None:
    rest = "".join(f", {name}" for name in states.split(", "))
    text = f"""{HEAD} g (float[s, b, 3] x) => (float[s, 1, b, 2] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] zero = {{0}},
         int64 at = {{1}}> {{
        sh = Shape(x) n = Gather(sh, at) b1 = Unsqueeze(n, zero)
        to = Concat<axis = 0>(two, b1, two)
        z = ConstantOfShape<value = float[1] {{{value}}}>(to) h = Slice(z, zero, one, zero)
        y = {op}<hidden_size = 2>(x, w, r, , {rest}) }}""".replace(", ,  ,", ", , ,")
    text = text.replace(", , , h", ", , , h").replace("r, , ,", "r, , ,")
    model = model_of(text.replace("int64 at", f"float[1, {2 * gates}, 3] w = {_row(6 * gates)}, "
        f"float[1, {2 * gates}, 2] r = {_row(4 * gates)}, int64 at"))  # fmt: skip
    feeds = [{"x": normal(5, b, 3)} for b in (1, 2)]
    after, _ = transformed(model, Simplify(), feeds)
    assert (ops(after) == {op: 1}) is (value == 0)


def _row(size: int) -> str:
    return "{" + ", ".join(f"{x:.3f}" for x in normal(size)) + "}"


@pytest.mark.parametrize(
    "body",
    [
        "t = Tile(x, ones) y = Relu(t)",
        "t = Where(yes, x, x) y = Relu(t)",
        "t = Where(yes, x, z) y = Relu(t)",
        "t = Where(no, z, x) y = Relu(t)",
        "t = ReduceSum(x, last) y = Relu(t)",
        "t = ReduceMean<axes = [2]>(x) y = Relu(t)",
        "t = ReduceSum<noop_with_empty_axes = 1>(x) y = Relu(t)",
        "t = Max(x, low) y = Relu(t)",
        "n = Neg(x) t = Neg(n) y = Relu(t)",
    ],
)
def test_more_that_does_nothing(body: str) -> None:
    model = model_of(f"""{HEAD} g (float[n, 3, 1] x, float[n, 3, 1] z) => (float[n, 3, 1] y)
        <int64[3] ones = {{1, 1, 1}}, bool yes = {{1}}, bool no = {{0}}, int64[1] last = {{-1}},
         float low = {{1}}> {{ {body} }}""")
    infinite = np.array(-np.inf, np.float32)
    model.graph.initializers["low"].const_value = ir.tensor(infinite, name="low")
    feeds = [{"x": normal(n, 3, 1), "z": normal(n, 3, 1, seed=1)} for n in (2, 0)]
    leaves({"Relu": 1}, model, Simplify(), feeds, tolerance=0)


@pytest.mark.parametrize(
    "body",
    [
        "y = Where(yes, x, wide)",
        "y = ReduceSum<keepdims = 0>(x, last)",
        "y = ReduceSum(x)",
        "y = ReduceL2<axes = [2]>(x)",
        "y = Max(x, one)",
        "y = Tile(x, twice)",
    ],
)
def test_what_looks_like_nothing_and_is_something_stays(body: str) -> None:
    before = model_of(f"""{HEAD} g (float[n, 3, 1] x) => (float y)
        <bool yes = {{1}}, int64[1] last = {{-1}}, float one = {{1}}, int64[3] twice = {{1, 1, 2}},
         float[1, 3, 2] wide = {{1, 2, 3, 4, 5, 6}}> {{ {body} }}""")
    before.graph.outputs[0].shape = None
    leaves(ops(before), before, Simplify(), [{"x": normal(2, 3, 1)}], tolerance=0)


def test_equal_weights_of_bodies_are_stored_once() -> None:
    """Small constants stay: runtimes look for them in the body."""
    row = _row(300)
    text = f"""{HEAD} g (float[n, 300] x, bool c) => (float[n, 300] y) <float[300] w = {row}> {{
        t = If(c) <
          then_branch = t () => (float[n, 300] p) <float[300] w1 = {row}> {{ p = Mul(x, w1) }},
          else_branch = e () => (float[n, 300] q) <float[300] w2 = {row}, float[300] w3 = {row},
            int64[1] s1 = {{0}}, int64[1] s2 = {{0}}> {{
            a = Mul(x, w2) b = Add(a, w3) d = Unsqueeze(b, s1) q = Squeeze(d, s2) }}>
        y = Div(t, w) }}"""
    feeds = [{"x": normal(2, 300), "c": np.array(c)} for c in (True, False)]
    model, _ = transformed(text, Simplify(), feeds, tolerance=1e-5)
    large = [v.name for g in model.graphs() for v in g.initializers.values()]
    assert large == ["w"]


def test_results_that_would_fill_memory_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["w", "v", "u"]
    nodes = " ".join(
        f"t{i} = Transpose<perm = [1, 0]>({name}) x{i + 1} = MatMul(x{i}, t{i})"
        for i, name in enumerate(names)
    )
    weights = ", ".join(f"float[1] {name} = {{1}}" for name in names)
    model = model_of(
        f"{HEAD} g (float[n, 300] x0) => (float[n, 300] x3) <{weights}> {{ {nodes} }}"
    )
    for seed, name in enumerate(names):
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(normal(300, 300, seed=seed), name=name)
        value.shape = ir.Shape([300, 300])
    monkeypatch.setattr(constants, "HELD_BYTES", 2 * 300 * 300 * 4)
    after = leaves(
        {"MatMul": 3, "Transpose": 1}, model, Simplify(), [{"x0": normal(2, 300)}], tolerance=1e-5
    )
    assert "would fill memory" in edit.take_notes(after)
