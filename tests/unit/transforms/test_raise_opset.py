"""Old models compute the same in newer operators."""

import numpy as np
import pytest
from tests.unit.rewriting import Arrays, model_of, normal, ops, run, transformed

from ortune.core.errors import BadModel, Refused
from ortune.core.facts import Facts
from ortune.graph.ir import edit
from ortune.transforms.raise_opset import RaiseOpset

X = {"x": normal(2, 4, 6)}

OLD = {
    "Softmax, over all axes behind": (11, "y = Softmax<axis = 1>(x)"),
    "Hardmax, over all axes behind": (11, "y = Hardmax(x)"),
    "Hardmax, over one axis": (7, "y = Hardmax<axis = 2>(x)"),
    "GroupNormalization, a scale a group": (
        18,
        "u = Unsqueeze(x, last) y = GroupNormalization<num_groups = 2>(u, two, two)",
    ),
    "Squeeze and Unsqueeze by attribute": (
        11,
        "u = Unsqueeze<axes = [0]>(x) y = Squeeze<axes = [0]>(u)",
    ),
    "ReduceSum by attribute": (11, "y = ReduceSum<axes = [1], keepdims = 0>(x)"),
    "ReduceMean by attribute": (17, "y = ReduceMean<axes = [2]>(x)"),
    "ReduceMax over everything": (12, "y = ReduceMax(x)"),
    "Split by attribute": (
        11,
        "a, b = Split<axis = 2, split = [2, 4]>(x) y = Concat<axis = 2>(b, a)",
    ),
    "Split in equal parts": (13, "a, b = Split<axis = 2>(x) y = Add(a, b)"),
    "Clip by attribute": (7, "y = Clip<min = -0.5, max = 0.5>(x)"),
    "Pad by attribute": (10, "y = Pad<pads = [0, 1, 0, 0, 0, 2], value = 1.5>(x)"),
    "Slice by attribute": (9, "y = Slice<starts = [1], ends = [3], axes = [2]>(x)"),
    "Dropout": (10, "t = Dropout(x) y = Relu(t)"),
    "Cast": (9, "t = Cast<to = 7>(x) y = Cast<to = 1>(t)"),
    "Upsample": (9, "u = Unsqueeze<axes = [0]>(x) y = Upsample(u, scales)"),
    "Resize": (10, "u = Unsqueeze<axes = [0]>(x) y = Resize(u, scales)"),
    "Upsample, linear": (9, 'u = Unsqueeze<axes = [0]>(x) y = Upsample<mode = "linear">(u, odd)'),
    "Upsample, linear, by attribute": (
        7,
        """u = Unsqueeze<axes = [0]>(x)
        y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 1.5]>(u)""",
    ),
    "Resize, linear": (10, 'u = Unsqueeze<axes = [0]>(x) y = Resize<mode = "linear">(u, odd)'),
    "Resize, linear, smaller": (
        10,
        'u = Unsqueeze<axes = [0]>(x) y = Resize<mode = "linear">(u, less)',
    ),
    "Resize, nearest, smaller": (10, "u = Unsqueeze<axes = [0]>(x) y = Resize(u, less)"),
    "Resize, linear, by a scale that is computed": (
        10,
        'u = Unsqueeze<axes = [0]>(x) e = Exp(nil) y = Resize<mode = "linear">(u, e)',
    ),
    "TopK": (10, "y, i = TopK(x, k)"),
    "Gemm": (7, "r = Reshape(x, flat) y = Gemm(r, r2, c)"),
    "BatchNormalization": (9, "y = BatchNormalization(x, four, four, four, four)"),
    "AveragePool": (10, "u = Unsqueeze<axes = [0]>(x) y = AveragePool<kernel_shape = [2, 2]>(u)"),
}


def text(opset: int, body: str) -> str:
    held = (
        ""
        if opset < 7
        else (
            "<float[4] scales = {1, 1, 2, 2}, float[4] odd = {1, 1, 1.5, 2.3}, "
            "float[4] less = {1, 1, 0.6, 0.5}, float[4] nil = {0, 0, 0, 1}, "
            "int64[1] k = {2}, int64[2] flat = {-1, 6}, "
            "float[6, 1] r2 = {1, 2, 3, 4, 5, 6}, float[1] c = {1}, float[4] four = {1, 2, 3, 4}, "
            "float[2] two = {1, 2}, int64[1] last = {3}>"
        )
    )
    return f"""<ir_version: 7, opset_import: ["": {opset}]>
        g (float[a, 4, 6] x) => (float[] y) {held} {{ {body} }}"""


PAIRS = [(case, to) for case in OLD for to in (13, 17, 18, 20, 23) if to > OLD[case][0]]


@pytest.mark.parametrize(("case", "to"), PAIRS)
def test_old_operators(case: str, to: int) -> None:
    opset, body = OLD[case]
    feeds: list[Arrays] = [X, {"x": normal(1, 4, 6)}]
    model, count = transformed(text(opset, body), RaiseOpset(to=to), feeds, may_grow=True)
    assert count >= 1 and model.opset_imports[""] == to


def test_only_what_changed_is_touched() -> None:
    source = text(11, "[keep] r = Relu(x) [old] s = Softmax(r) [more] y = Neg(s)")
    model = model_of(source)
    for node in model.graph:
        node.metadata_props["from"] = node.name or ""
    kept = {node.name: node for node in model.graph}
    assert RaiseOpset(to=13).apply(model) == 2
    assert [node for node in model.graph if node in kept.values()] == [kept["keep"], kept["more"]]
    assert all(node.metadata_props for node in model.graph if node.op_type != "Constant")


def test_operators_of_other_domains_are_left_alone() -> None:
    source = text(11, "t = own.odd(x) y = Softmax<axis = 2>(t)").replace(
        '["": 11]', '["": 11, "own": 3]'
    )
    model = model_of(source)
    RaiseOpset(to=13).apply(model)
    assert model.opset_imports == {"": 13, "own": 3} and ops(model)["odd"] == 1


def test_bodies_and_functions_are_raised_too() -> None:
    source = """<ir_version: 8, opset_import: ["": 11, "own": 1]>
        g (float[2, 3] x, bool c) => (float[2, 3] y) {
        f = own.soft(x)
        y = If(c) <
          then_branch = t () => (float[2, 3] p) { p = Softmax(f) },
          else_branch = e () => (float[2, 3] q) { u = Unsqueeze<axes = [0]>(f)
            q = Squeeze<axes = [0]>(u) }> }
        <opset_import: ["": 11], domain: "own"> soft (a) => (b) { b = Softmax(a) }"""
    feeds = [{"x": normal(2, 3), "c": np.array(c)} for c in (True, False)]
    model, _ = transformed(source, RaiseOpset(to=13), feeds, may_grow=True)
    squeeze = next(node for node in edit.walk_nodes(model) if node.op_type == "Squeeze")
    assert len(squeeze.inputs) == 2 and not model.functions


def test_a_picture_in_a_body_grows_as_it_did() -> None:
    source = """<ir_version: 7, opset_import: ["": 9]>
        g (float[1, 2, 3, 3] x, bool c) => (float[1, 2, 6, 6] y) <float[4] s = {1, 1, 2, 2}> {
        y = If(c) <
          then_branch = t () => (float[1, 2, 6, 6] p) { p = Upsample<mode = "linear">(x, s) },
          else_branch = e () => (float[1, 2, 6, 6] q) { n = Neg(x)
            q = Upsample<mode = "linear">(n, s) }> }"""
    feeds = [{"x": normal(1, 2, 3, 3), "c": np.array(c)} for c in (True, False)]
    model, _ = transformed(source, RaiseOpset(to=13), feeds, may_grow=True)
    assert ops(model)["Resize"] == 2 and "Upsample" not in ops(model)


def test_no_way_is_said() -> None:
    source = """<ir_version: 3, opset_import: ["": 8]>
        g (float[1, 2] s, float[1, 3, 2] x) => (float[1, 2] y, float[1, 3, 2] z) {
        y, z = Scan<num_scan_inputs = 1, body = b (float[2] i, float[2] n) =>
          (float[2] o, float[2] p) { o = Add(i, n) p = Identity(o) }>(, s, x) }"""
    model = model_of(source)
    with pytest.raises(BadModel, match=r"Scan .* has no way from opset 8 to 13"):
        RaiseOpset(to=13).apply(model)
    assert model.opset_imports[""] == 8


def test_an_opset_that_does_not_exist() -> None:
    with pytest.raises(Refused, match="there is no opset 999"):
        RaiseOpset(to=999).apply(model_of(text(17, "y = Relu(x)")))


def test_it_applies_to_older_models() -> None:
    facts = Facts({}, 0, 0, 0, {}, 11, 7, (), ())
    assert RaiseOpset(to=13).applies(facts) and not RaiseOpset(to=11).applies(facts)
    assert not RaiseOpset.automatic


def test_a_dropouts_mask_that_nothing_reads_changes_its_type() -> None:
    text = """<ir_version: 3, opset_import: ["": 7]>
    g (float[2,3] x) => (float[2,3] y) <float[2,3] m> { y, m = Dropout (x) }"""
    after, count = transformed(text, RaiseOpset(to=13), [{"x": normal(2, 3)}])
    assert count and after.opset_imports[""] == 13


def test_a_model_without_standard_operators_is_left_alone() -> None:
    text = """<ir_version: 8, opset_import: ["ai.onnx.ml": 3]>
    g (float[2] x) => (float[2] y) { y = ai.onnx.ml.Binarizer <threshold: float = 1.0> (x) }"""
    model = model_of(text)
    assert RaiseOpset(to=17).apply(model) == 0


def test_slopes_of_one_axis_were_one_a_channel() -> None:
    text = """<ir_version: 3, opset_import: ["": 6]>
    g (float[1,2,3] x) => (float[1,2,3] y) <float[2] s = {0.5, 0.25}> { y = PRelu (x, s) }"""
    model = model_of(text)
    assert RaiseOpset(to=17).apply(model)
    slope = edit.const_array(next(iter(model.graph)).inputs[1])
    assert slope is not None and slope.shape == (2, 1)
    x = -np.ones((1, 2, 3), np.float32)
    (y,) = run(model, {"x": x})
    np.testing.assert_array_equal(y[0, :, 0], [-0.5, -0.25])
