"""What a file must hold before it is read: each broken rule is named, and costs little."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import psutil
import pytest
from onnx import TensorProto, helper
from tests import hostile

from ortune.core.errors import BadModel
from ortune.graph.io import file, protobuf


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
