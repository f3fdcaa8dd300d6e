"""RMS normalization in the spellings of the exporters, and what is none."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, model_of, normal, transformed

from ortune.core.facts import Facts
from ortune.graph.ir.edit import take_notes
from ortune.transforms.fuse_rms_norm import FuseRmsNorm

STEP = FuseRmsNorm()
FEEDS = [{"x": normal(2, 3, 4)}, {"x": normal(1, 3, 4) * 100 + 5}, {"x": normal(0, 3, 4)}]
SQUARE = {"pow": "q = Pow(x, two)", "mul": "q = Mul(x, x)"}
ROOT = {
    "div": "s = Sqrt(a) t = Div(x, s)",
    "reciprocal": "s = Sqrt(a) r = Reciprocal(s) t = Mul(x, r)",
    "one over": "s = Sqrt(a) r = Div(one, s) t = Mul(r, x)",
    "power": "r = Pow(a, minus) t = Mul(x, r)",
}


def body(square: str = "pow", root: str = "div", scaled: str = "y = Mul(t, scale)") -> str:
    mean = "v = ReduceMean<keepdims = 1>(q, axes) a = Add(v, eps)"
    return f"{SQUARE[square]} {mean} {ROOT[root]} {scaled}"


def text(
    parts: str, *, opset: int = 23, axes: str = "-1", shape: str = "[4]", kind: str = "float"
) -> str:
    size = 12 if "3" in shape else 4
    numbers = ", ".join(str(1 + i / 7) for i in range(size))
    return f"""<ir_version: 10, opset_import: ["": {opset}]>
        g ({kind}[n, 3, 4] x) => ({kind}[n, 3, 4] y)
        <int64[{len(axes.split(","))}] axes = {{{axes}}}, {kind} eps = {{0.00001}},
         {kind} two = {{2}}, {kind} one = {{1}}, {kind} minus = {{-0.5}},
         {kind}{shape} scale = {{{numbers}}}> {{ {parts} }}"""


@pytest.mark.parametrize("root", ROOT)
@pytest.mark.parametrize("square", SQUARE)
def test_spellings(square: str, root: str) -> None:
    model = becomes({"RMSNormalization": 1}, text(body(square, root)), STEP, FEEDS, tolerance=1e-5)
    assert model.graph[0].outputs[0].name == "y"


def test_two_axes() -> None:
    source = text(body(), axes="-2, -1", shape="[3, 4]")
    model, count = transformed(source, STEP, FEEDS, tolerance=1e-5)
    assert count == 1 and model.graph[0].attributes["axis"].value == -2


def test_without_a_scale() -> None:
    source = text(body(scaled="y = Neg(t)"))
    becomes({"RMSNormalization": 1, "Neg": 1}, source, STEP, FEEDS, tolerance=1e-5)


def test_the_scale_behind_casts_stays_there() -> None:
    parts = "x = Cast<to = 1>(x16)" + body(scaled="z = Cast<to = 10>(t) y = Mul(w, z)")
    source = text(parts).replace("(float[n, 3, 4] x)", "(float16[n, 3, 4] x16)")
    source = source.replace("=> (float", "=> (float16").replace(
        "<int64", "<float16[1] w = {15872}, int64"
    )
    feeds = [{"x16": feed["x"].astype(np.float16)} for feed in FEEDS[:1]]
    becomes(
        {"Cast": 2, "RMSNormalization": 1, "Mul": 1},
        source,
        STEP,
        feeds,
        tolerance=1e-3,
        may_grow=True,
    )


def test_a_layer_norm_is_left_to_its_own_step() -> None:
    parts = body().replace("Pow(x, two)", "Pow(d, two)").replace("Div(x, s)", "Div(d, s)")
    source = text(f"m = ReduceMean<keepdims = 1>(x, axes) d = Sub(x, m) {parts}")
    model = model_of(source)
    assert STEP.apply(model) == 0 and not take_notes(model)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (text(body(), axes="1"), "not the last"),
        (text(body(), kind="double"), "float64"),
        (text(body() + " z = Neg(s)"), "read elsewhere"),
        (text(body(scaled="y = Neg(t)")).replace("[n, 3, 4]", "[n, 3, d]"), "size of an axis"),
        (text(body().replace("Div(x, s)", "Div(s, x)")), "read elsewhere"),
    ],
)
def test_refusals_have_a_reason(source: str, why: str) -> None:
    source = source.replace("z = Neg(s)", "z = Neg(s)").replace(
        "[n, 3, 4] y)", "[n, 3, 4] y, float[n, 3, 1] z)" if "z = Neg" in source else "[n, 3, 4] y)"
    )
    left_alone(source, STEP, why)


def test_older_opsets_are_left_alone() -> None:
    left_alone(text(body(), opset=22), STEP)


def test_layer_norms_alone_do_not_raise_a_model_to_opset_23() -> None:
    def facts(means: int, roots: int) -> Facts:
        counts = {"ReduceMean": means, "Sqrt": roots, "Mul": 9, "Div": 9}
        return Facts(counts, 9, 0, 0, {}, 18, 8, (), ())

    assert STEP.applies(facts(9, 9)) and STEP.applies(facts(10, 9))
    assert not STEP.applies(facts(24, 12)) and not STEP.applies(facts(3, 0))
