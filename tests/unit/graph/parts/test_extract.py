"""A piece of a model runs by itself and gives the same numbers as the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tests.unit.rewriting import model_of, normal, run

from ortune.core.errors import BadModel
from ortune.graph.io import file
from ortune.graph.io.wellformed import list_problems
from ortune.graph.parts.extract import extract

CHAIN = """
<ir_version: 10, opset_import: ["" : 18, "own" : 1, "ai.onnx.ml" : 3],
 metadata_props: ["author": "somebody"]>
g (float[n, 4] x, float[n, 4] mask) => (float[n, 4] y, float[n] total)
<float[4, 4] w = {1,2,3,4, 5,6,7,8, 9,1,2,3, 4,5,6,7}, float[4] unread = {1,2,3,4},
 int64[1] axes = {1}>
{
  a = MatMul(x, w)
  b = own.twice(a)
  c = Mul(b, mask)
  d = Add(c, a)
  y = Softmax(d)
  total = ReduceSum<keepdims = 0>(c, axes)
}
<domain: "own", opset_import: ["" : 18]> twice (p) => (q) { q = Add(p, p) }
<domain: "own", opset_import: ["" : 18]> unused (p) => (q) { q = Neg(p) }
"""

BODIES = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 4] x, bool flag) => (float[n, 4] y)
<float[4] scale = {1, 2, 3, 4}>
{
  a = Abs(x)
  b = Mul(a, scale)
  c = If (flag) <
    then_branch = t () => (float[n, 4] one) <float[4] shift = {5, 6, 7, 8}> {
      inner = Add(b, shift)
      one = Mul(inner, scale)
    },
    else_branch = e () => (float[n, 4] two) { two = Sub(a, scale) }
  >
  y = Neg(c)
}
"""


def whole(text: str, feeds: dict[str, NDArray], *names: str) -> dict[str, NDArray]:
    """Run the whole model with the named tensors as outputs too."""
    proto = onnx.parser.parse_model(text)
    known = {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    made = session.run(list(names), feeds)
    return dict(zip(names, made, strict=True))


FEEDS = {"x": normal(3, 4), "mask": normal(3, 4, seed=1)}


@pytest.mark.parametrize(
    ("starts", "ends", "inputs", "outputs"),
    [
        (("a",), ("d",), ["a", "mask"], ["d"]),
        (("a", "mask"), (), ["a", "mask"], ["y", "total"]),
        (("c",), (), ["c", "x"], ["y", "total"]),
        ((), ("c",), ["x", "mask"], ["c"]),
        (("c", "a"), ("y",), ["c", "a"], ["y"]),
        (("d",), (), ["d"], ["y"]),
    ],
)
def test_a_piece_gives_the_numbers_of_the_whole(
    starts: tuple[str, ...], ends: tuple[str, ...], inputs: list[str], outputs: list[str]
) -> None:
    model = model_of(CHAIN)
    piece = extract(model, starts, ends)
    assert [v.name for v in piece.graph.inputs] == inputs
    assert [v.name for v in piece.graph.outputs] == outputs
    assert all(v.shape is not None and len(v.shape) == 2 for v in piece.graph.inputs)
    values = {**FEEDS, **whole(CHAIN, FEEDS, *(n for n in inputs + outputs if n not in FEEDS))}
    for name, made in zip(outputs, run(piece, {n: values[n] for n in inputs}), strict=True):
        np.testing.assert_allclose(made, values[name], rtol=1e-5)


def test_only_what_is_used_comes_along() -> None:
    piece = extract(model_of(CHAIN), ["a"], ["c"])
    assert dict(piece.metadata_props) == {"author": "somebody"}
    assert [name for _, name, _ in piece.functions] == ["twice"]
    assert not piece.graph.initializers and "ai.onnx.ml" not in piece.opset_imports
    assert not list_problems(piece)
    assert set(extract(model_of(CHAIN), ["c"], ["total"]).graph.initializers) == {"axes"}


def test_the_model_is_left_as_it_was() -> None:
    model = model_of(CHAIN)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    extract(model, ["a"], ["d"])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_nodes_stand_for_what_they_read_and_make() -> None:
    model = model_of(CHAIN)
    node = next(node for node in model.graph if node.op_type == "Mul")
    node.name = "c"  # as its output: the tensor wins
    piece = extract(model, ["node:c"], ["c"])
    assert [v.name for v in piece.graph.inputs] == ["b", "mask"]
    assert [one.op_type for one in piece.graph] == ["Mul"]
    model.graph[0].name = "first"
    assert [v.name for v in extract(model, ["first"], ["first"]).graph.inputs] == ["x"]


def test_what_bodies_capture_comes_along() -> None:
    x = normal(2, 4)
    piece = extract(model_of(BODIES), ["b"], ["c"])
    assert [v.name for v in piece.graph.inputs] == ["b", "x", "flag"]
    for flag in (True, False):
        feeds = {"x": x, "flag": np.array(flag)}
        values = whole(BODIES, feeds, "b", "c")
        made = run(piece, {**feeds, "b": values["b"]})
        np.testing.assert_allclose(made[0], values["c"])
    node = next(one for one in model_of(BODIES).graph if one.op_type == "If")
    named = extract(model_of(BODIES), [f"node:{node.name}"], ["c"])
    assert [v.name for v in named.graph.inputs] == ["flag", "b", "a"]


def test_a_piece_of_a_body_is_taken_out_of_it() -> None:
    piece = extract(model_of(BODIES), (), ["one"])
    assert [v.name for v in piece.graph.inputs] == ["x"]
    assert set(piece.graph.initializers) == {"scale", "shift"}
    feeds = {"x": normal(2, 4), "flag": np.array(True)}
    wanted = whole(BODIES, feeds, "c")["c"]
    np.testing.assert_allclose(run(piece, {"x": feeds["x"]})[0], wanted)
    inner = extract(model_of(BODIES), ["inner"], ["one"])
    assert [v.name for v in inner.graph.inputs] == ["inner"]


def test_the_state_of_a_loop_is_an_input() -> None:
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[2] x, int64 trips) => (float[2] y)
{
  y = Loop (trips, , x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] t) {
      on = Identity(go)
      twice = Add(s, s)
      t = Abs(twice)
    }>
}
"""
    piece = extract(model_of(text), (), ["t"])
    assert [v.name for v in piece.graph.inputs] == ["s"]
    assert run(piece, {"s": np.float32([1, -2])})[0].tolist() == [2, 4]


def test_inputs_with_defaults_keep_them() -> None:
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[2] x, float[2] k) => (float[2] y) <float[2] k = {3, 4}> { a = Abs(x)  y = Mul(a, k) }
"""
    piece = extract(model_of(text), ["a"])
    assert [v.name for v in piece.graph.inputs] == ["a", "k"]
    assert run(piece, {"a": np.float32([1, 2])})[0].tolist() == [3, 8]


@pytest.mark.parametrize(
    ("starts", "ends", "what", "fix"),
    [
        (("aa",), (), "no tensor or node 'aa'", "a"),
        (("w",), (), "'w' is a constant", "computed"),
        ((), ("x",), "'x' is an input", "a node makes"),
        ((), ("w",), "'w' is a constant", "a node makes"),
        (("total",), ("y",), "does not depend on 'total'", "leave it out; it depends on mask, x"),
        (("a",), ("a",), "begins and ends at 'a'", "node:NAME"),
        (("y",), (), "no output of the model depends on y", "another tensor"),
    ],
)
def test_bad_cuts_are_refused(
    starts: tuple[str, ...], ends: tuple[str, ...], what: str, fix: str
) -> None:
    with pytest.raises(BadModel) as error:
        extract(model_of(CHAIN), starts, ends)
    assert what in error.value.what
    assert fix in error.value.fix


def test_a_model_without_outputs_needs_an_end() -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => () { a = Abs(x) }'
    with pytest.raises(BadModel, match="the model has no outputs"):
        extract(model_of(text))
    assert [value.name for value in extract(model_of(text), (), ("a",)).graph.outputs] == ["a"]


def test_types_that_nobody_knows_are_asked_of_a_run() -> None:
    text = """
<ir_version: 10, opset_import: ["" : 18, "nobody" : 1]>
g (float[2] x) => (float[2] y) { a = nobody.Thing(x)  y = Abs(a) }
"""
    model = model_of(text)
    with pytest.raises(BadModel, match="type of 'a'"):
        extract(model, ["a"])
    piece = extract(model, ["a"], runtime=lambda names: {"a": ("float32", (2,))})
    assert run(piece, {"a": np.float32([-1, 2])})[0].tolist() == [1, 2]


def test_the_weights_are_not_copied_and_the_source_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(CHAIN), path)
    model = file.load(path)
    piece = extract(model, [], ["a"])
    held = piece.graph.initializers["w"].const_value
    assert held is model.graph.initializers["w"].const_value
    with pytest.raises(Exception, match="is the model that was read"):
        file.save(piece, path)
