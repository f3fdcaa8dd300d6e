"""The check after each step finds what a careless step breaks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import model_of

from ortune.core.errors import BadModel
from ortune.graph.io.check import check_model, describe_signature, list_problems

TEXT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n, 4] x, bool c) => (float[n, 4] y)
    <float[4] w = {1, 2, 3, 4}> {
    a = Add(x, w) b = Mul(a, w)
    y = If(c) <
      then_branch = t () => (float[n, 4] p) { p = Neg(b) },
      else_branch = e () => (float[n, 4] q) { q = Exp(a) }> }"""


def find(model: ir.Model, op: str) -> ir.Node:
    return next(node for node in model.graph.all_nodes() if node.op_type == op)


def rename_output(model: ir.Model) -> None:
    model.graph.outputs[0].name = "z"


def retype_input(model: ir.Model) -> None:
    model.graph.inputs[0].type = ir.TensorType(ir.DataType.FLOAT16)


def fix_size(model: ir.Model) -> None:
    model.graph.outputs[0].shape = ir.Shape(["n", 5])


def drop_input(model: ir.Model) -> None:
    find(model, "Add").replace_input_with(0, model.graph.initializers["w"])
    del model.graph.inputs[0]


def swap_order(model: ir.Model) -> None:
    first = model.graph[0]
    model.graph.remove(first)
    model.graph.insert_after(model.graph[0], first)


def lose_weight(model: ir.Model) -> None:
    del model.graph.initializers["w"]


def read_from_a_branch(model: ir.Model) -> None:
    inner = find(model, "Neg").outputs[0]
    late = ir.node("Relu", [inner])
    late.outputs[0].name = "late"
    model.graph.append(late)


def same_name(model: ir.Model) -> None:
    find(model, "Exp").outputs[0].name = "a"


def mix_types(model: ir.Model) -> None:
    half = ir.tensor(np.ones(4, np.float16), name="h")
    model.graph.register_initializer(ir.val("h", const_value=half))
    find(model, "Add").replace_input_with(1, model.graph.initializers["h"])


def declare_wrongly(model: ir.Model) -> None:
    find(model, "Add").outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    find(model, "Add").outputs[0].shape = ir.Shape(["n", 4])


def widen(model: ir.Model) -> None:
    find(model, "Add").outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    find(model, "Add").outputs[0].shape = ir.Shape(["n", 4])
    wide = ir.tensor(np.ones((1, 1, 4), np.float32), name="h")
    model.graph.register_initializer(ir.val("h", const_value=wide))
    find(model, "Add").replace_input_with(1, model.graph.initializers["h"])


def unknown_attribute(model: ir.Model) -> None:
    find(model, "Add").attributes["odd"] = ir.AttrInt64("odd", 1)


BREAKERS: dict[Callable[[ir.Model], None], str] = {
    rename_output: "its outputs are now z",
    retype_input: "input 'x' was float32, is float16",
    fix_size: "output 'y' had shape",
    drop_input: "its inputs are now c",
    swap_order: "reads 'a', which nothing has made before",
    lose_weight: "reads 'w', which nothing has made before",
    read_from_a_branch: "reads 'p', which nothing has made before",
    same_name: "two values are called 'a'",
    mix_types: "tensor.float16.",
    declare_wrongly: "'a' is declared float16 and computed as float",
    widen: "'a' is declared",
    unknown_attribute: "odd",
}


@pytest.mark.parametrize("broken", BREAKERS, ids=lambda f: f.__name__)
def test_a_broken_model_is_refused(broken: Callable[[ir.Model], None]) -> None:
    model = model_of(TEXT)
    before = describe_signature(model)
    check_model(model, before, "nothing")
    broken(model)
    with pytest.raises(BadModel, match=BREAKERS[broken]) as caught:
        check_model(model, before, "careless")
    assert "careless" in caught.value.what
    assert len(str(caught.value).splitlines()) == 2


def test_shapes_may_become_known() -> None:
    model = model_of(TEXT)
    model.graph.outputs[0].shape = None
    before = describe_signature(model)
    model.graph.outputs[0].shape = ir.Shape(["n", 4])
    check_model(model, before, "infer")


def test_a_fault_of_the_source_is_let_pass() -> None:
    model = model_of(TEXT)
    declare_wrongly(model)
    before = describe_signature(model)
    assert before.faults
    check_model(model, before, "nothing")


def test_a_sound_model_has_no_problems() -> None:
    assert list_problems(model_of(TEXT)) == []
