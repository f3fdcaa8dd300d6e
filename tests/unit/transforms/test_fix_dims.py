"""Dimensions become numbers, numbers become dimensions; the answers stay."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of as weighted
from tests.unit.rewriting import Arrays, model_of, normal, ops, run

from ortune.cli.main import main
from ortune.core.errors import BadSettings, OrtuneError, Refused
from ortune.core.plugins.plugin import spell_value
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Recipe, Transform
from ortune.data import synthetic
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.graph.io.wellformed import check_model, describe_signature
from ortune.graph.ir import edit
from ortune.search.recipe.build import build
from ortune.transforms.fix_dims import FixDims
from ortune.transforms.free_dims import FreeDims
from ortune.transforms.simplify import Simplify

PADDED = """<ir_version: 8, opset_import: ["": 17]>
g (float[batch,3,height,width] x, float[batch,4] s) => (float[batch,3,oh,ow] y, float[batch,4] z)
<int64[1] two = {2}, int64[4] front = {0, 0, 0, 0}, int64[1] end = {4}> {
  shape = Shape(x)
  spatial = Slice(shape, two, end)
  odd = Mod(spatial, two)
  none = Sub(odd, odd)
  pads = Concat<axis = 0>(front, none, odd)
  y = Pad(x, pads)
  z = Relu(s)
}"""


def test_shape_arithmetic_folds_behind_fixed_dimensions() -> None:
    before = model_of(PADDED)
    step = FixDims(dims=("height:7", "width:8", "batch:2"))
    after = before.clone()
    assert step.apply(after) == 4
    check_model(after, describe_signature(before), "fix-dims")
    Simplify().apply(after)
    shapes = {one.name: one.shape for one in (*edit.list_inputs(after), *edit.list_outputs(after))}
    assert shapes == {"x": (2, 3, 7, 8), "s": (2, 4), "y": (2, 3, 8, 8), "z": (2, 4)}
    assert ops(after) == {"Pad": 1, "Relu": 1} and "Mod" in ops(before)
    given = {"x": normal(2, 3, 7, 8), "s": normal(2, 4)}
    for one, two in zip(run(before, given), run(after, given), strict=True):
        np.testing.assert_array_equal(one, two)


def test_axes_without_a_name_and_names_everywhere() -> None:
    model = model_of(
        "g (float[?,n] x, float[n] w) => (float[?,n] y) { t = Mul(x, w) y = Relu(t) }"
    )
    assert FixDims(dims=("x.0:5", "x.1:3")).apply(model) == 3
    assert [one.shape for one in edit.list_inputs(model)] == [(5, 3), (3,)]
    assert edit.list_outputs(model)[0].shape == (5, 3)


def test_fixing_again_is_nothing() -> None:
    model = model_of(PADDED)
    FixDims(dims=("batch:2",)).apply(model)
    assert FixDims(dims=("x.0:2",)).apply(model) == 0


WRONG = [
    (FixDims(dims=("hight:7",)), "no dimension 'hight'", "those there: batch, height, width"),
    (FixDims(dims=("x.9:7",)), "has no axis 9", "from 0 to 3"),
    (FixDims(dims=("x.1:4",)), "axis 1 of 'x' is 3, not 4", "free-dims"),
    (FixDims(dims=("height:0",)), "'0' is not a size of 'height'", "1 or more"),
    (FixDims(dims=("height:x",)), "'x' is not a size", "1 or more"),
    (FixDims(dims=("height",)), "'height' names no SIZE", "DIMENSION:SIZE"),
    (FreeDims(dims=("q.0:n",)), "no dimension 'q.0'", "INPUT.AXIS names any: x.0"),
    (FreeDims(dims=("x.1:3",)), "'3' is not a name", "letters"),
]


@pytest.mark.parametrize(("step", "what", "fix"), WRONG)
def test_what_is_not_there_is_said(step: Transform, what: str, fix: str) -> None:
    with pytest.raises(BadSettings, match=what) as raised:
        step.apply(model_of(PADDED))
    assert fix in raised.value.fix


def test_dimensions_are_spelled_without_quotes() -> None:
    step = parse_plugin(Transform, "fix-dims(dims=[batch:1, x.2:224])")
    assert step == FixDims(dims=("batch:1", "x.2:224"))
    assert spell_value(step) == "fix-dims(dims=[batch:1, x.2:224])"
    assert parse_plugin(Transform, spell_value(FixDims(dims=("past + 1:4",)))) == FixDims(
        dims=("past + 1:4",)
    )


def held(*shape: int, seed: int = 0) -> np.ndarray:
    return normal(*shape, seed=seed)


def heads(burned: str, back: str, opset: int = 17) -> tuple[str, dict[str, np.ndarray]]:
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
    g (float[1,s,8] x) => (float[1,s,8] y) <int64[4] to = {burned}, int64[3] back = {back}> {{
      a = MatMul(x, w) r = Reshape(a, to) t = Transpose<perm = [0,2,1,3]>(r)
      u = Transpose<perm = [0,1,3,2]>(t) q = MatMul(t, u) p = Softmax<axis = -1>(q)
      m = MatMul(p, t) n = Transpose<perm = [0,2,1,3]>(m) y = Reshape(n, back) }}"""
    return text, {"w": held(8, 8)}


LSTM = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,5,4] x) => (float[1,5,6] y, float[1,1,6] h) <int64[1] axis = {1}> {
  t = Transpose<perm = [1,0,2]>(x) o, h, c = LSTM<hidden_size = 6>(t, w, r, , , s, s)
  q = Squeeze(o, axis) y = Transpose<perm = [1,0,2]>(q) }"""
STATES = {"w": held(1, 24, 4), "r": held(1, 24, 6, seed=1), "s": held(1, 1, 6, seed=2)}
VIT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,3,8,8] x) => (float[1,6] y) <int64[3] to = {1, 6, 16}> {
  p = Conv<strides = [2,2]>(x, w) f = Reshape(p, to) t = Transpose<perm = [0,2,1]>(f)
  j = Concat<axis = 1>(token, t) a = Add(j, places)
  y = ReduceMean<axes = [1], keepdims = 0>(a) }"""
TOKENS = {"w": held(6, 3, 2, 2), "token": held(1, 1, 6), "places": held(1, 17, 6)}
MERGED = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,4,6] x) => (float[1,4,6] y) <int64[3] to = {4, 2, 3}, int64[3] back = {1, 4, 6}> {
  r = Reshape(x, to) n = Neg(r) y = Reshape(n, back) }"""
RESIZED = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,2,3,4] x) => (float[1,2,6,8] y) <int64[4] to = {1, 2, 6, 8}, float[0] none = {}> {
  y = Resize<mode = "nearest">(x, none, none, to) }"""
EXPANDED = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,1,4] x) => (float[2,3,4] y) <int64[3] to = {2, 3, 4}> { y = Expand(x, to) }"""

FREED: dict[str, tuple[str, dict[str, np.ndarray], tuple[int, ...]]] = {
    "heads": (*heads("{1, -1, 2, 4}", "{1, -1, 8}"), (1, 5, 8)),
    "first state": (LSTM, STATES, (1, 5, 4)),
    "token": (VIT, TOKENS, (1, 3, 8, 8)),
    "merged": (MERGED, {}, (1, 4, 6)),
    "resize": (RESIZED, {}, (1, 2, 3, 4)),
    "expand, a batch of two": (EXPANDED, {}, (2, 1, 4)),
}


@pytest.mark.parametrize("case", FREED)
def test_a_burned_batch_is_freed(case: str) -> None:
    """Rows together give what they give alone, for every number of them."""
    text, weights, sizes = FREED[case]
    before = weighted(text, weights)
    after = before.clone()
    step = FreeDims()
    bridge = step.bridge(before)
    assert step.apply(after) == 1 and bridge is not None
    (taken,) = edit.list_inputs(after)
    assert taken.shape is not None and taken.shape[0] == "batch"
    for sample in bridge.samples({"x": normal(*sizes)}):
        told = bridge.joined([_named(before, one) for one in bridge.runs(sample)])
        found = _named(after, sample)
        for name, one in told.items():
            np.testing.assert_allclose(found[name], one, rtol=1e-5, atol=1e-6)
    rows = {len(sample["x"]) for sample in bridge.samples({"x": normal(*sizes)})}
    assert rows == {sizes[0], 2 * sizes[0], 3 * sizes[0]}


def _named(model: ir.Model, sample: Arrays) -> dict[str, np.ndarray]:
    names = [one.name for one in edit.list_outputs(model)]
    return dict(zip(names, run(model, sample), strict=True))


def test_a_body_that_reads_it_is_refused() -> None:
    model = model_of(
        """g (float[1,3] x, bool c) => (float[1,3] y) { y = If(c) <
          then_branch = t () => (float[1,3] p) { p = Relu(x) },
          else_branch = e () => (float[1,3] q) { q = Neg(x) }> }"""
    )
    with pytest.raises(Refused, match=r"If .* a body reads"):
        FreeDims().apply(model)


def test_two_firsts_are_asked_back() -> None:
    model = model_of("g (float[1,3] x, float[2,1] s) => (float[2,3] y) { y = Add(x, s) }")
    with pytest.raises(Refused, match=r"which dimension is the batch\? First are 1 of 'x'"):
        FreeDims().apply(model)


def test_rows_that_mix_are_refused_by_numbers(tmp_path: Path) -> None:
    """The mean over the batch runs at any size, and is another at each."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,3] x) => (float[1,3] y) {
        m = ReduceMean<axes = [0], keepdims = 1>(x) y = Sub(x, m) }"""
    source = file.save(model_of(text), tmp_path / "m.onnx")
    inputs = read_facts(file.load(source)).inputs
    made = synthetic.generate_feeds(inputs, tmp_path, shapes={}, ranges={}, count=2)
    with pytest.raises(OrtuneError, match="free-dims: outputs differ"):
        build(source, Recipe("r", (FreeDims(),)), tmp_path / "out.onnx", feeds=made)
    assert not (tmp_path / "out.onnx").exists()


def test_height_and_width_are_freed_and_run_at_twice_the_size(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,3,8,6] x) => (float[1,48,4] y) <int64[3] to = {1, 4, 48}> {
        c = Conv<pads = [1,1,1,1]>(x, w) r = Reshape(c, to) y = Transpose<perm = [0,2,1]>(r) }"""
    model = weighted(text, {"w": held(4, 3, 3, 3)})
    source = file.save(model, tmp_path / "m.onnx")
    inputs = read_facts(file.load(source)).inputs
    made = synthetic.generate_feeds(inputs, tmp_path, shapes={}, ranges={}, count=1)
    step = FreeDims(dims=("x.2:height", "x.3:width"))
    built = build(source, Recipe("r", (step,)), tmp_path / "out.onnx", feeds=made)
    after = file.load(built.path)
    assert edit.list_inputs(after)[0].shape == (1, 3, "height", "width")
    assert run(after, {"x": normal(1, 3, 10, 12)})[0].shape == (1, 120, 4)


def test_fixed_and_freed_on_the_command_line(tmp_path: Path) -> None:
    source = file.save(model_of(PADDED), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    fixed = "fix-dims(dims=[batch:1, height:5, width:6])"
    assert main(["apply", str(source), fixed, "simplify", "free-dims", "-o", str(out)]) == 0
    assert read_facts(file.load(out)).inputs[0].shape == ("batch", 3, 5, 6)
