"""The check after each step finds what a careless step breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import psutil
import pytest
from onnx import TensorProto, helper
from tests import hostile
from tests.unit.rewriting import model_of

from ortune.core.errors import BadModel
from ortune.graph.io import file, protobuf
from ortune.graph.io.wellformed import check_model, describe_signature, list_problems

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


def test_a_rank_that_the_source_declares_wrongly_is_no_fault_of_a_step() -> None:
    model = model_of("g (float[1, 4] x) => (float[1, 1, 4] y) { y = Relu(x) }")
    before = describe_signature(model)
    assert before.faults == {"declared"}
    output = model.graph.outputs[0]
    output.name = "inner"
    cast = ir.node("Identity", [output])
    cast.outputs[0].name, cast.outputs[0].dtype = "y", output.dtype
    cast.outputs[0].shape = output.shape
    model.graph.append(cast)
    model.graph.outputs[0] = cast.outputs[0]
    check_model(model, before, "a step that puts a node behind the output")


def test_a_sound_model_has_no_problems() -> None:
    assert list_problems(model_of(TEXT)) == []


# What a file must hold before it is read: each broken rule is named, and costs little.


@pytest.mark.parametrize("name", list(hostile.REFUSED))
def test_a_broken_rule_is_named(name: str, tmp_path: Path) -> None:
    path = hostile.written(name, tmp_path / "one")
    before, started = psutil.Process().memory_info().rss, time.process_time()
    with pytest.raises(BadModel) as error:
        file.load(path)
    assert hostile.REFUSED[name][1] in error.value.what
    assert time.process_time() - started < 10
    assert psutil.Process().memory_info().rss - before < 500_000_000
    for read in (
        (file.compute_digest, file.count_file_bytes) if not name.startswith("many ") else ()
    ):
        try:
            read(path)
        except BadModel:
            continue


@pytest.mark.parametrize("name", list(hostile.ODD))
def test_an_odd_model_is_read_or_refused(name: str, tmp_path: Path) -> None:
    path = hostile.written(name, tmp_path / "one")
    try:
        file.save(file.load(path), tmp_path / "again.onnx")
    except BadModel as error:
        assert "is not a valid model" in error.what


def test_every_cut_and_every_flipped_byte_is_read_or_refused(tmp_path: Path) -> None:
    data = hostile.good().SerializeToString()
    path = tmp_path / "m.onnx"
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]):
            path.write_bytes(changed)
            try:
                file.load(path)
            except BadModel:
                continue


def test_a_model_of_as_many_nodes_as_people_have_is_read(tmp_path: Path) -> None:
    model = hostile.good()
    relu = model.graph.node.pop()
    for k in range(20_000):
        node = helper.make_node("Neg", [f"n{k}" if k else "s"], [f"n{k + 1}"], "name" * 110)
        model.graph.node.append(node)  # in all over 8 MB: the fields of small messages are counted
    relu.input[0] = "n20000"
    model.graph.node.append(relu)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert onnx.ModelProto.FromString(protobuf.strip_weights(path.read_bytes())) == model
    assert len(file.load(path).graph) == 20_003


def test_numbers_of_a_forest_are_not_counted(tmp_path: Path) -> None:
    model = hostile.good()
    node = helper.make_node("TreeEnsembleRegressor", ["h"], ["t"], domain="ai.onnx.ml")
    node.attribute.append(helper.make_attribute("nodes_treeids", [1] * 4_000_000))
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    started = time.process_time()
    assert len(file.parse_outline(path).graph.node) == 4
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("kind", "field", "count", "size"),
    [
        (TensorProto.INT4, "int32_data", 3, 5),
        (TensorProto.UINT2, "int32_data", 2, 5),
        (TensorProto.FLOAT16, "int32_data", 5, 5),
        (TensorProto.BOOL, "int32_data", 5, 5),
        (TensorProto.UINT32, "uint64_data", 5, 5),
        (TensorProto.COMPLEX64, "float_data", 10, 5),
        (TensorProto.DOUBLE, "double_data", 5, 5),
        (TensorProto.FLOAT, "float_data", 0, 0),
    ],
)
def test_a_tensor_in_any_field_is_read(
    tmp_path: Path, kind: int, field: str, count: int, size: int
) -> None:
    model = hostile.good()
    tensor = model.graph.initializer.add(name="more", data_type=kind, dims=[size])
    getattr(tensor, field).extend([1] * count)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    held = file.load(path).graph.initializers["more"].const_value
    assert held is not None
    assert held.numpy().shape == (size,)
    if count:
        getattr(tensor, field).append(1)
        onnx.save(model, path)
        with pytest.raises(BadModel, match="tensor 'more' holds"):
            file.load(path)
        getattr(tensor, field).pop()
    other = "int64_data" if field == "int32_data" else "int32_data"
    getattr(tensor, other).append(1)
    onnx.save(model, path)
    with pytest.raises(BadModel, match=f"'more' of .* has {other}, where {field} counts"):
        file.load(path)
