"""Names become unique, and those that were are never touched."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.unit.rewriting import run

from ortune.core.errors import BadModel
from ortune.graph.io import file
from ortune.graph.io.names import make_names_unique
from ortune.graph.io.wellformed import list_problems
from ortune.graph.ir import edit

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def node_names(model: ir.Model) -> list[str | None]:
    return [node.name for node in model.graph.all_nodes()]


def test_unnamed_and_duplicate_nodes() -> None:
    text = f"""{HEAD} g (float[n] x) => (float[n] y) {{
        [same] a = Neg(x) [same] b = Neg(a) c = Neg(b) y = Neg(c) }}"""
    model = ir.from_onnx_text(text)
    assert make_names_unique(model) == 3
    assert node_names(model) == ["same", "same_2", "Neg_2", "Neg_3"]
    assert make_names_unique(model) == 0


def test_a_number_that_is_taken_is_passed_over() -> None:
    model = ir.from_onnx_text(
        f"""{HEAD} g (float[n] x) => (float[n] y) {{
        [a] p = Neg(x) [a_2] q = Neg(p) [a] y = Neg(q) }}"""
    )
    make_names_unique(model)
    assert node_names(model) == ["a", "a_2", "a_3"]


def test_a_body_may_not_shadow() -> None:
    text = f"""{HEAD} g (float[n] x, bool c) => (float[n] y) {{
        t = Neg(x)
        y = If(c) <
          then_branch = p () => (float[n] t) {{ t = Relu(x) }},
          else_branch = e () => (float[n] y) {{ y = Abs(x) }}> }}"""
    model = ir.from_onnx_text(text)
    assert make_names_unique(model) >= 2
    names = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    assert len(set(names)) == len(names)
    assert model.graph.outputs[0].name == "y" and not list_problems(model)


LOOP = f"""{HEAD} g (float[2] x) => (float[2] y)
    <int64 n = {{2}}, bool go = {{1}}, float[2] w = {{2, 3}}> {{
    h = Mul(x, w)
    r = Loop(n, go, h) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] o)
      <float[2] w = {{5, 7}}> {{ d = Identity(c) o = Mul(h, w) }}>
    y = Add(r, h) }}"""
SCAN = f"""{HEAD} g (float[3, 2] x) => (float[2] y) <float[2] w = {{2, 3}}> {{
    s = Mul(w, w)
    y, z = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] x) => (float[2] t, float[2] u)
      <float[2] w = {{1, 4}}> {{ t = Add(s, x) u = Mul(t, w) }}>(s, x) }}"""
NESTED = f"""{HEAD} g (float[2] x, bool c) => (float[2] y)
    <int64 n = {{2}}, float[2] w = {{2, 3}}> {{
    h = Mul(x, w)
    y = If(c) <
      then_branch = t () => (float[2] p) <float[2] w = {{5, 7}}> {{
        a = Mul(h, w)
        p = Loop(n, c, a) <body = b (int64 n, bool c, float[2] h) => (bool d, float[2] o)
          <float[2] x = {{1, 4}}> {{ d = Identity(c) q = Mul(h, w) o = Add(q, x) }}> }},
      else_branch = e () => (float[2] q) <float[2] h = {{1, 2}}> {{ q = Mul(h, w) }}> }}"""


@pytest.mark.parametrize("text", [LOOP, SCAN, NESTED], ids=["loop", "scan", "nested"])
@pytest.mark.parametrize("above", [0, 10**9], ids=["external", "inside"])
def test_what_a_body_is_given_or_holds_may_shadow(text: str, above: int, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(text)
    onnx.checker.check_model(proto, full_check=True)
    shape = (3, 2) if text is SCAN else (2,)
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    feeds |= {"c": np.array(True)} if text is NESTED else {}
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    onnx.save(proto, tmp_path / "m.onnx")
    for _ in range(2):  # what is written is read again
        model = file.load(tmp_path / "m.onnx")
        value_names = [
            value.name
            for graph in edit.walk_graphs(model)
            for value in (
                *dict.fromkeys((*graph.inputs, *graph.initializers.values())),
                *(value for node in graph for value in node.outputs),
            )
        ]
        assert len(set(value_names)) == len(value_names)
        for answer, wanted in zip(run(model, feeds), expected, strict=True):
            np.testing.assert_array_equal(answer, wanted)
        file.save(model, tmp_path / "n.onnx", external_above=above)
        (tmp_path / "n.onnx").rename(tmp_path / "m.onnx")


def test_what_a_node_makes_may_not_shadow(tmp_path: Path) -> None:
    text = NESTED.replace("a = Mul(h, w)", "h = Mul(x, w) a = Mul(h, w)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(BadModel, match="two values are called 'h'"):
        file.load(tmp_path / "m.onnx")


def test_functions_keep_their_own_world() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[n] x) => (float[n] y) { y = own.f(x) }
        <opset_import: ["": 17], domain: "own"> f (x) => (y) { y = Neg(x) }"""
    model = ir.from_onnx_text(text)
    make_names_unique(model)
    assert [v.name for v in next(iter(model.functions.values())).inputs] == ["x"]


def test_optional_outputs_stay_absent() -> None:
    text = f"""{HEAD} g (float[2, 1, 3] x) => (float[2, 1, 4] y)
        <float[1, 16, 3] w, float[1, 16, 4] r> {{
        a, y0 = LSTM<hidden_size = 4>(x, w, r) y = Squeeze(a, at) }}"""
    proto = onnx.parser.parse_model(
        text.replace("<float[1, 16, 3] w, float[1, 16, 4] r>", "<int64[1] at = {1}>")
    )
    proto.graph.node[0].output[:] = ["a", "", ""]
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 16, 3), np.float32), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 16, 4), np.float32), "r"))
    model = ir.from_proto(proto)
    make_names_unique(model)
    assert [value.name for value in model.graph[0].outputs] == ["a", "", ""]


OPS = ["Neg", "Relu", "Abs", "Identity", "Exp"]
NAME = st.sampled_from(["", "a", "b", "node", "node_2", "Neg_0"])


@st.composite
def graphs(draw: st.DrawFn, depth: int = 1) -> onnx.ModelProto:
    """A random graph of unary and binary nodes, with clashing names and an If now and then."""
    return helper.make_model(
        helper.make_graph(
            *draw(_nodes("v", ["x"], depth)),
            [numpy_helper.from_array(np.array([1.5, -2], np.float32), "w")],
        ),
        opset_imports=[helper.make_opsetid("", draw(st.sampled_from([11, 13, 17])))],
        ir_version=8,
    )


@st.composite
def _nodes(draw: st.DrawFn, stem: str, seen: list[str], depth: int) -> tuple:
    known = [*seen, "w"]
    nodes = []
    for index in range(draw(st.integers(1, 5))):
        out = f"{stem}{index}"
        kind = draw(st.sampled_from([*OPS, "Add", "Constant", *(["If"] if depth else [])]))
        pick = st.sampled_from(known)
        if kind == "Constant":
            value = numpy_helper.from_array(np.array([0.5, 3], np.float32))
            node = helper.make_node("Constant", [], [out], value=value)
        elif kind == "If":
            bodies = {}
            for branch in ("then_branch", "else_branch"):
                inner, _, _, outputs = draw(_nodes(f"{stem}i", known, depth - 1))
                bodies[branch] = helper.make_graph(inner, branch, [], outputs)
            node = helper.make_node("If", ["c"], [out], **bodies)
        elif kind == "Add":
            node = helper.make_node("Add", [draw(pick), draw(pick)], [out])
        else:
            node = helper.make_node(kind, [draw(pick)], [out])
        node.name = draw(NAME)
        nodes.append(node)
        known.append(out)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    last = helper.make_tensor_value_info(known[-1], TensorProto.FLOAT, [2])
    return nodes, "g", inputs, [last]


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([0, 10**9]))
def test_names_and_round_trips_of_random_graphs(proto: onnx.ModelProto, above: int) -> None:
    with TemporaryDirectory() as folder:
        source = Path(folder) / "m.onnx"
        source.write_bytes(proto.SerializeToString())
        model = file.load(source)
        names = node_names(model)
        assert all(names) and len(set(names)) == len(names)
        values = [v.name for node in model.graph.all_nodes() for v in node.outputs]
        assert len(set(values)) == len(values)
        assert [v.name for v in model.graph.outputs] == [v.name for v in proto.graph.output]
        assert not list_problems(model) and make_names_unique(model) == 0
        once = file.save(model, Path(folder) / "once.onnx", external_above=above)
        again = file.load(once)
        assert node_names(again) == names
        twice = file.save(again, Path(folder) / "twice.onnx", external_above=above)
        one, two = (onnx.load(path) for path in (once, twice))
        for tensor in [*one.graph.initializer, *two.graph.initializer]:
            tensor.ClearField("external_data")
        assert one == two
        feeds = {"x": np.array([-1.5, 0.25], np.float32), "c": np.array(True)}
        given_ = {v.name: feeds[v.name or ""] for v in model.graph.inputs}
        for wanted, got in zip(run(model, given_), run(again, given_), strict=True):
            np.testing.assert_array_equal(got, wanted)
