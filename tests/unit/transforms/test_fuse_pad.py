"""Pads that go into the convolution or pooling behind them, and those that may not."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, model_of, normal, ops, transformed

from ortune.graph.ir import edit
from ortune.transforms.fuse_pad import FusePad

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
CONSTANTS = """int64[8] ones = {0, 0, 1, 1, 0, 0, 1, 1}, int64[8] odd = {0, 0, 0, 1, 0, 0, 1, 2},
    int64[8] channels = {0, 1, 0, 0, 0, 0, 0, 0}, int64[8] cut = {0, 0, -1, 0, 0, 0, 0, 0},
    float zero = {0}, float one = {1},
    float[1, 2, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1},
    float[1, 3, 3, 3] w3 = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 2, 3, 4, 5, 6,
    7, 8, 9}"""


def text(body: str) -> str:
    return f"""{HEAD} g (float[n, 2, 7, 6] x) => (float[n, c, h, v] y)
        <{CONSTANTS}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("t = Pad(x, ones) y = Conv(t, w)", {"Conv": 1}),
        ("t = Pad(x, odd, zero) y = Conv<strides = [2, 2]>(t, w)", {"Conv": 1}),
        ("t = Pad(x, odd) y = Conv<pads = [1, 0, 2, 0]>(t, w)", {"Conv": 1}),
        ("t = Pad(x, ones) y = Conv<dilations = [2, 2]>(t, w)", {"Conv": 1}),
        ('t = Pad(x, odd) y = Conv<auto_pad = "VALID">(t, w)', {"Conv": 1}),
        ('t = Pad(x, odd) y = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(t, w)', {"Conv": 1}),
        ('t = Pad(x, odd) y = Conv<auto_pad = "SAME_LOWER", strides = [2, 3]>(t, w)', {"Conv": 1}),
        ("t = Pad(x, ones) y = AveragePool<kernel_shape = [2, 3]>(t)", {"AveragePool": 1}),
        ("r = Relu(x) t = Pad(r, ones) y = MaxPool<kernel_shape = [2, 2]>(t)",
         {"Relu": 1, "MaxPool": 1}),
        ("t = Pad(x, odd) u = Conv(t, w) v = Pad(u, odd) y= AveragePool<kernel_shape = [3, 3]>(v)",
         {"Conv": 1, "AveragePool": 1}),
    ],
)  # fmt: skip
def test_padding_is_done_by_the_node_behind(body: str, left: dict[str, int]) -> None:
    feeds = [{"x": normal(n, 2, 7, 6)} for n in (1, 3)]
    model, count = transformed(text(body), FusePad(), feeds, tolerance=1e-6)
    assert count > 0 and ops(model) == left


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('t = Pad<mode = "reflect">(x, ones) y = Conv(t, w)', "pads by reflect"),
        ("t = Pad(x, ones, one) y = Conv(t, w)", "another number than 0"),
        ("t = Pad(x, channels) y = Conv(t, w3)", "more than the spatial axes"),
        ("t = Pad(x, cut) y = Conv(t, w)", "cuts instead of padding"),
        ("t = Pad(x, ones) a = Conv(t, w) b = Relu(t) y = Conv(b, w)",
         "read elsewhere"),
        ("t = Pad(x, ones) y = MaxPool<kernel_shape = [2, 2]>(t)", "may be the largest"),
        ("t = Pad(x, ones) y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(t)",
         "leaves its own padding out"),
        ("t = Pad(x, ones) y = AveragePool<kernel_shape = [3, 3], ceil_mode = 1>(t)", "ceil_mode"),
        ("t = Pad(x, ones) y = AveragePool<kernel_shape = [1, 3]>(t)", "padding alone"),
        ("k = Size(x) u = Cast<to = 1>(k) t = Pad(x, ones, u) y = Conv(t, w)", "not constant"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(body: str, why: str) -> None:
    model = model_of(text(body))
    before = ops(model)
    assert FusePad().apply(model) == 0 and ops(model) == before
    assert why in edit.take_notes(model)


@pytest.mark.parametrize(("number", "count"), [(-np.inf, 1), (-3e38, 0), (np.inf, 0)])
def test_infinity_before_a_maximum(number: float, count: int) -> None:
    """What stays is not run: onnxruntime 1.31 takes any number for -inf there."""
    model = model_of(text("t = Pad(x, ones, one) y = MaxPool<kernel_shape = [2, 2]>(t)"))
    pad = next(node for node in model.graph if node.op_type == "Pad")
    array = np.array(number, np.float32)
    pad.replace_input_with(2, edit.Editor(model.graph).add_constant("number", array))
    feeds = [{"x": normal(1, 2, 7, 6) - 5}] if count else []
    after, done = transformed(model, FusePad(), feeds)
    assert done == count and ops(after).get("Pad", 0) == 1 - count


def test_an_old_opset_writes_attributes() -> None:
    old = text("t = Pad<pads = [0, 0, 1, 0, 0, 0, 1, 2]>(x) y = Conv(t, w)")
    old = old.replace('"": 17', '"": 9')
    becomes({"Conv": 1}, old, FusePad(), [{"x": normal(2, 2, 7, 6)}])


def test_axes_of_a_newer_opset() -> None:
    new = text("t = Pad(x, two, , at) y = Conv(t, w)").replace('"": 17', '"": 18')
    new = new.replace("float zero", "int64[2] two = {1, 2}, int64[1] at = {-1}, float zero")
    becomes({"Conv": 1}, new, FusePad(), [{"x": normal(2, 2, 7, 6)}])


def test_a_size_that_is_not_known_leaves_same_alone() -> None:
    source = text('t = Pad(x, odd) y = Conv<auto_pad = "SAME_UPPER">(t, w)')
    source = source.replace("float[n, 2, 7, 6] x", "float[n, 2, p, q] x")
    model, count = transformed(source, FusePad(), [{"x": normal(1, 2, 7, 6)}])
    assert count == 0 and "depends on the size" in edit.take_notes(model)
