"""Edits keep a model valid: names stay unique, constants are found wherever they live."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.unit.rewriting import model_of

from ortune.graph.ir import edit, prune

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
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
    held = edit.Editor(function).add_constant("k", np.zeros(4, np.float32))
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


def test_a_call_with_more_outputs_than_its_function_is_left() -> None:
    model = ir.from_onnx_text(TEXT.replace("h = l.f(a)", "h, more = l.f(a)"))
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
        "4 left alone, its result is read twice: a, b, c and 1 more; "
        "1 left alone, the factor is not a constant: m"
    )
    assert edit.take_notes(model) == ""


def test_a_long_chain_of_identities_is_not_walked_to_its_start() -> None:
    """Each node of the chain would walk it anew: 10,000 of them took 55 s."""
    chain = " ".join(f"v{i} = Identity(v{i - 1})" for i in range(1, 3000))
    model = model_of(
        f"{HEAD} g (float[n] x) => (float[n] y) <float v0 = {{2}}> {{ {chain} y = Mul(x, v2999) }}"
    )
    values = {value.name: value for node in model.graph for value in node.outputs}
    assert edit.const_array(values["v9"]) == 2
    assert edit.const_tensor(values["v2999"]) is None
    assert edit.follow_identities(values["v2999"]) is not values["v2999"]
    last = next(node for node in model.graph if node.op_type == "Mul")
    model.graph.outputs[0] = model.graph.inputs[0]
    edit.take_out(last)
    assert not list(model.graph) and not model.graph.initializers


def test_readers_are_counted_no_further_than_asked() -> None:
    fan = " ".join(f"v{i} = Add(w, w)" for i in range(50))
    model = model_of(f"{HEAD} g () => (float y) <float w = {{2}}> {{ {fan} y = Neg(v0) }}")
    weight = model.graph.initializers["w"]
    first, second, *_ = model.graph
    assert edit.list_readers(weight, 2) == [first, second]
    assert len(edit.list_readers(weight, 99)) == 50
    assert not edit.has_single_use(weight) and edit.is_read(weight)
    assert edit.has_single_use(first.outputs[0]) and not edit.is_read(second.outputs[0])


def test_weights_that_differ_late_are_shared_in_time_linear_in_their_number() -> None:
    graph = model_of(
        f"{HEAD} g () => (float[1000] y) {{ y = Constant<value = float {{2}}>() }}"
    ).graph
    model = ir.Model(graph, ir_version=8)
    for index in range(1000):
        array = np.zeros(1000, np.float32)
        array[1] = index // 2
        edit.Editor(graph).add_constant(f"w{index}", array)
    assert prune.share_weights(model) == 500
    left = {float(value.const_value.numpy()[1]) for value in graph.initializers.values()}
    assert left == set(range(500))


def test_a_bodys_weight_serves_no_other_body() -> None:
    bodies = ", ".join(
        f"{name}_branch = {name}_g () => (float[500] {name}_o) "
        f"{{ {name}_k = Constant<value = float {{1}}>() {name}_o = Add(x, {name}_k) }}"
        for name in ("then", "else")
    )
    model = model_of(
        f"{HEAD} g (float[500] x, bool c) => (float[500] y) {{ y = If(c) <{bodies}> }}"
    )
    for body in model.graph.subgraphs():
        add = body[1]
        value = edit.Editor(body).add_constant(f"{body.name}_w", np.ones(500, np.float32))
        add.replace_input_with(1, value)
    assert prune.share_weights(model) == 0
    edit.Editor(model.graph).add_constant("w", np.ones(500, np.float32))
    assert prune.share_weights(model) == 2
    assert not any(body.initializers for body in model.graph.subgraphs())
