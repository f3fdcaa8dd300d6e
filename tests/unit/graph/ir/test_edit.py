"""Edits keep a model valid: names stay unique, constants are found wherever they live."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortune.graph.ir import edit

TEXT = """<ir_version: 8, opset_import: ["": 17, "l": 1]>
g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
  a = Add(x, w)
  h = l.f(a)
  y = If(c) <
    then_branch = t () => (float[N,4] p) { p = Mul(h, w) },
    else_branch = e () => (float[N,4] q) {
      k = Constant<value = float[4] {5,6,7,8}>()
      same = Identity(k)
      q = Mul(h, same)
    }>
}
<opset_import: ["": 17], domain: "l">
f (z) => (o) { k = Constant<value = float[4] {1,1,1,1}>() o = Add(z, k) }
"""


@pytest.fixture
def model() -> ir.Model:
    return ir.from_onnx_text(TEXT)


def run(model: ir.Model) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString())
    x = np.arange(4, dtype=np.float32)[None]
    return [session.run(None, {"x": x, "c": np.array(c)})[0] for c in (True, False)]


def find(model: ir.Model, op: str) -> ir.Node:
    return next(node for node in edit.walk_nodes(model) if node.op_type == op)


def test_every_graph_reaches_bodies_and_functions(model: ir.Model) -> None:
    assert [graph.name for graph in edit.walk_graphs(model)] == ["g", "t", "e", "f"]


def test_constants_are_found_in_every_place(model: ir.Model) -> None:
    muls = [node for node in edit.walk_nodes(model) if node.op_type == "Mul"]
    held = [edit.const_array(node.inputs[1]) for node in muls]
    assert [list(array) for array in held if array is not None] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert edit.const_array(muls[0].inputs[0]) is None
    assert edit.const_array(None) is None


def test_new_names_avoid_every_body(model: ir.Model) -> None:
    editor = edit.Editor(model.graph)
    assert [editor.reserve_name("k"), editor.reserve_name("k"), editor.reserve_name("new")] == [
        "k_2",
        "k_3",
        "new",
    ]


def test_constant_in_a_function_is_a_node(model: ir.Model) -> None:
    function = next(iter(model.functions.values()))
    held = edit.add_constant(function, "k", np.zeros(4, np.float32))
    add = next(node for node in function if node.op_type == "Add")
    before = run(model)
    add.replace_input_with(1, held)
    assert run(model)[0] == pytest.approx(before[0] - [1, 2, 3, 4])


def test_inserted_nodes_serve_a_body(model: ir.Model) -> None:
    before = run(model)
    editor = edit.Editor(model.graph)
    mul = find(model, "Mul")
    two = editor.add_constant("w", np.full(4, 2, np.float32))
    made = editor.make_node("Mul", [mul.inputs[0], two], name="a")
    edit.insert_before(mul, made)
    mul.replace_input_with(0, made.outputs[0])
    after = run(model)
    assert after[0] == pytest.approx(2 * before[0])
    assert after[1] == pytest.approx(before[1])


def test_insert_first_and_after(model: ir.Model) -> None:
    before = run(model)
    editor = edit.Editor(model.graph)
    add = find(model, "Add")
    first = editor.make_node("Neg", [add.inputs[1]])
    edit.insert_first(model.graph, first)
    last = editor.make_node("Neg", [add.outputs[0]])
    edit.insert_after(add, last)
    find(model, "f").replace_input_with(0, last.outputs[0])
    add.replace_input_with(1, first.outputs[0])
    x = np.arange(4, dtype=np.float32)
    w = np.array([1, 2, 3, 4], dtype=np.float32)
    assert run(model)[0][0] == pytest.approx((-(x - w) + 1) * w)
    assert before[0][0] == pytest.approx((x + w + 1) * w)


def test_inline_keeps_the_answers_and_the_names_apart(model: ir.Model) -> None:
    before = run(model)
    assert edit.inline_functions(model) == 1
    assert not model.functions
    for one, two in zip(before, run(model), strict=True):
        assert one == pytest.approx(two)


def test_inline_leaves_functions_of_another_opset(model: ir.Model) -> None:
    next(iter(model.functions.values())).opset_imports[""] = 16
    assert edit.inline_functions(model) == 0
    assert len(model.functions) == 1


def test_discard_only_takes_what_nothing_uses(model: ir.Model) -> None:
    weight = model.graph.initializers["w"]
    assert not edit.discard_constant(weight)
    for node, index in weight.uses():
        node.replace_input_with(index, None)
    assert edit.discard_constant(weight)
    assert "w" not in model.graph.initializers


def test_discard_follows_identity(model: ir.Model) -> None:
    same = find(model, "Identity").outputs[0]
    for node, index in same.uses():
        node.replace_input_with(index, model.graph.initializers["w"])
    assert edit.discard_constant(same)
    assert not [n for n in edit.walk_nodes(model) if n.op_type in ("Identity",)]
    assert [n.op_type for n in edit.walk_nodes(model)].count("Constant") == 1


def test_discard_takes_an_initializer_out_of_the_inputs() -> None:
    model = ir.from_onnx_text("""<ir_version: 3, opset_import: ["": 9]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1,2}> { y = Neg(x) }""")
    weight = model.graph.initializers["w"]
    if weight not in model.graph.inputs:
        model.graph.inputs.append(weight)
    assert edit.discard_constant(weight)
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_notes_are_given_once(model: ir.Model) -> None:
    edit.add_note(model, "one")
    edit.add_note(model, "one")
    edit.add_note(model, "two")
    assert edit.take_notes(model) == "one; two"
    assert edit.take_notes(model) == ""


def test_refusals_are_counted_by_their_reason() -> None:
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    for name in ("a", "b", "c", "d"):
        node = ir.node("Relu", [None], name=name)
        edit.note_refusal(model, node, "its result is read twice")
    edit.note_refusal(
        model, ir.node("Mul", [None, None], name="m"), "the factor is not a constant"
    )
    said = edit.take_notes(model)
    assert said == (
        "4 left alone, its result is read twice: a, b, c, ...; "
        "1 left alone, the factor is not a constant: m"
    )
    assert edit.take_notes(model) == ""
