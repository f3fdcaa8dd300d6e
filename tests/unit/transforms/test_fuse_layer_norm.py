"""Layer normalization in the spellings of the exporters, before and after opset 18."""

import itertools

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, model_of, normal, transformed

from ortune.graph.ir.edit import take_notes
from ortune.transforms.fuse_layer_norm import FuseLayerNorm

STEP = FuseLayerNorm()
FEEDS = [{"x": normal(2, 3, 4)}, {"x": normal(1, 3, 4) * 100 + 5}, {"x": normal(0, 3, 4)}]


def mean(source: str, target: str, opset: int, axes: str = "-1") -> str:
    if opset < 18:
        return f"{target} = ReduceMean<axes = [{axes}], keepdims = 1>({source})"
    return f"{target} = ReduceMean<keepdims = 1>({source}, axes)"


def text(
    body: str, opset: int, *, axes: str = "-1", shape: str = "[4]", kind: str = "float"
) -> str:
    size = 12 if "3" in shape else 4
    numbers = ", ".join(str(1 + i / 7) for i in range(size))
    count = len(axes.split(","))
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({kind}[n, 3, 4] x) => ({kind}[n, 3, 4] y)
        <int64[{count}] axes = {{{axes}}}, {kind} eps = {{0.00001}}, {kind} two = {{2}},
         {kind}{shape} scale = {{{numbers}}}, {kind}{shape} shift = {{{numbers}}}> {{ {body} }}"""


SQUARE = {"pow": "q = Pow(d, two)", "mul": "q = Mul(d, d)"}
DIVIDE = {
    "div": "t = Div(d, s)",
    "reciprocal": "r = Reciprocal(s) t = Mul(d, r)",
    "twice": "d2 = Sub(x, m) t = Div(d2, s)",
}


def body(square: str, divide: str, opset: int, axes: str = "-1") -> str:
    return f"""{mean("x", "m", opset, axes)} d = Sub(x, m) {SQUARE[square]}
        {mean("q", "v", opset, axes)} a = Add(v, eps) s = Sqrt(a) {DIVIDE[divide]}
        u = Mul(t, scale) y = Add(u, shift)"""


@pytest.mark.parametrize(
    ("square", "divide", "opset"), itertools.product(SQUARE, DIVIDE, (17, 18))
)
def test_pytorch(square: str, divide: str, opset: int) -> None:
    source = text(body(square, divide, opset), opset)
    model = becomes({"LayerNormalization": 1}, source, STEP, FEEDS, tolerance=1e-5)
    assert model.graph[0].outputs[0].name == "y"


@pytest.mark.parametrize("opset", [17, 18])
def test_tensorflow(opset: int) -> None:
    source = f"""{mean("x", "m", opset)} d = Sub(x, m) q = Mul(d, d) {mean("q", "v", opset)}
        a = Add(v, eps) s = Sqrt(a) r = Reciprocal(s) k = Mul(r, scale)
        xk = Mul(x, k) mk = Mul(m, k) b = Sub(shift, mk) y = Add(xk, b)"""
    becomes({"LayerNormalization": 1}, text(source, opset), STEP, FEEDS, tolerance=1e-5)


def test_two_axes() -> None:
    source = text(body("mul", "div", 17, "-2, -1"), 17, axes="-2, -1", shape="[3, 4]")
    model, count = transformed(source, STEP, FEEDS, tolerance=1e-5)
    assert count == 1 and model.graph[0].attributes["axis"].value == -2


def test_without_a_shift() -> None:
    source = body("mul", "div", 17).replace(
        "u = Mul(t, scale) y = Add(u, shift)", "y = Mul(t, scale)"
    )
    model, count = transformed(text(source, 17), STEP, FEEDS, tolerance=1e-5)
    assert count == 1 and len(model.graph[0].inputs) == 2


def test_what_is_added_after_it_is_not_a_shift() -> None:
    source = body("mul", "div", 17).replace("y = Add(u, shift)", "y = Add(u, x)")
    becomes({"LayerNormalization": 1, "Add": 1}, text(source, 17), STEP, FEEDS, tolerance=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("q = Mul(d, d)", "q = Mul(d, x)"),
        ("d = Sub(x, m)", "d = Sub(m, x)"),
        ("t = Div(d, s)", "t = Div(s, d)"),
        ("t = Div(d, s)", "t = Div(x, s)"),
        ("axes = [-1]", "axes = [1]"),
    ],
)
def test_other_formulas_are_left_alone(old: str, new: str) -> None:
    source = body("mul", "div", 17)
    assert old in source
    left_alone(text(source.replace(old, new), 17), STEP)


def test_float64_keeps_its_precision() -> None:
    left_alone(text(body("mul", "div", 17), 17, kind="double"), STEP, "float64")


def test_a_scale_of_another_shape_stays_behind_it() -> None:
    source = text(body("mul", "div", 17), 17, shape="[3, 4]")
    becomes({"LayerNormalization": 1, "Mul": 1, "Add": 1}, source, STEP, FEEDS, tolerance=1e-5)


def test_a_scale_with_leading_ones() -> None:
    source = text(body("mul", "reciprocal", 18), 18, shape="[1, 1, 4]")
    becomes({"LayerNormalization": 1}, source, STEP, FEEDS, tolerance=1e-5)


@pytest.mark.parametrize("shape", ["[2, 1, 4]", "[3, 1]", "[1, 1, 1, 4]"])
def test_a_scale_that_widens_stays_behind_it(shape: str) -> None:
    numbers = ", ".join("1" for _ in range(8 if shape[1] == "2" else 3 if shape[1] == "3" else 4))
    source = text(body("mul", "div", 18), 18).replace(
        "float[4] scale = {", f"float{shape} scale = {{{numbers}}} , float[4] gone = {{"
    )
    source = source.replace(
        "float[n, 3, 4] y", "float[b, c, d, e] y" if shape.count(",") == 3 else "float[b, c, d] y"
    )
    becomes(
        {"LayerNormalization": 1, "Mul": 1, "Add": 1}, source, STEP, FEEDS[1:2], tolerance=1e-5
    )


@pytest.mark.parametrize("opset", [17, 18])
def test_without_a_scale(opset: int) -> None:
    source = body("pow", "twice", opset).replace("t = Div(d2, s)", "y = Div(d2, s)")
    source = source.replace("u = Mul(t, scale) y = Add(u, shift)", "")
    becomes({"LayerNormalization": 1}, text(source, opset), STEP, FEEDS, tolerance=1e-5)


def test_everything_computed_twice() -> None:
    again = f"{mean('x', 'm2', 18)} d2 = Sub(x, m2) t = Div(d2, s)"
    source = body("mul", "div", 18).replace("t = Div(d, s)", again)
    becomes({"LayerNormalization": 1}, text(source, 18), STEP, FEEDS, tolerance=1e-5)


@pytest.mark.parametrize(
    "new",
    [
        "s = Pow(a, half) t = Div(d, s)",
        "s = Pow(a, minus) t = Mul(s, d)",
        "s = Sqrt(a) r = Div(one, s) t = Mul(d, r)",
    ],
)
def test_spellings_of_the_root(new: str) -> None:
    source = text(body("mul", "div", 18).replace("s = Sqrt(a) t = Div(d, s)", new), 18)
    source = source.replace(
        "<int64[1]", "<float half={0.5}, float minus={-0.5}, float one={1}, int64[1]"
    )
    becomes({"LayerNormalization": 1}, source, STEP, FEEDS, tolerance=1e-5)


def test_casts_around_it_and_the_scale_behind_them() -> None:
    parts = body("pow", "div", 18).replace("u = Mul(t, scale) y = Add(u, shift)", "")
    source = text("x = Cast<to = 1>(x16)" + parts + " y16 = Cast<to = 10>(t) y = Mul(y16, w)", 18)
    source = source.replace("(float[n, 3, 4] x)", "(float16[n, 3, 4] x16)")
    source = source.replace("=> (float", "=> (float16").replace(
        "<int64", "<float16[1] w = {15872}, int64"
    )
    feeds = [{"x16": feed["x"].astype(np.float16)} for feed in FEEDS[:1]]
    becomes(
        {"Cast": 2, "LayerNormalization": 1, "Mul": 1},
        source,
        STEP,
        feeds,
        tolerance=1e-3,
        may_grow=True,
    )


def test_an_unknown_axis_is_as_long_as_its_scale() -> None:
    source = text(body("mul", "div", 18), 18).replace("float[n, 3, 4]", "float[n, 3, d]")
    becomes({"LayerNormalization": 1}, source, STEP, FEEDS, tolerance=1e-5)


def test_an_unknown_axis_without_a_scale_is_named() -> None:
    source = text(body("mul", "div", 18), 18).replace("float[n, 3, 4]", "float[n, 3, d]")
    source = source.replace("u = Mul(t, scale) y = Add(u, shift)", "y = Neg(t)")
    model = left_alone(source, STEP, "size of an axis")
    assert "norm_scale" not in model.graph.initializers


@pytest.mark.parametrize(("read", "named"), [("v", False), ("s", True), ("m", True)])
def test_a_part_that_is_read_elsewhere_is_left_alone(read: str, named: bool) -> None:
    source = text(body("mul", "div", 17) + f" z = Relu({read})", 17)
    source = source.replace("(float[n, 3, 4] y)", "(float[n, 3, 4] y, float[n, 3, 1] z)")
    model = model_of(source)
    assert STEP.apply(model) == 0
    assert ("read elsewhere" in take_notes(model)) == named, "a variance alone is no such norm"


def test_older_opsets_are_left_alone() -> None:
    left_alone(text(body("mul", "div", 16), 16), STEP)
