"""The walk over a file's tags sees what protobuf sees, and never stumbles over other bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from ortune.core.errors import BadModel
from ortune.graph.io import file, protobuf
from ortune.graph.io.protobuf import read_identity


def model(*sizes: int) -> onnx.ModelProto:
    """Weights of the given sizes in every place that can hold one."""
    arrays = [np.arange(size, dtype=np.float32) for size in sizes]
    tensors = [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)]
    constants = [
        helper.make_node("Constant", [], [f"c{i}"], value=t) for i, t in enumerate(tensors)
    ]
    body = helper.make_graph(constants, "body", [], [], tensors)
    branch = helper.make_node("If", ["p"], ["y"], then_branch=body, else_branch=body)
    graph = helper.make_graph([*constants, branch], "g", [], [], tensors)
    function = helper.make_function("own", "f", [], [], constants, [helper.make_opsetid("", 17)])
    return helper.make_model(graph, functions=[function], ir_version=9)


def restored(data: bytes) -> onnx.ModelProto:
    """Undo the outline by putting the bytes back."""
    found = onnx.ModelProto.FromString(protobuf.strip_weights(data))

    def walk(message: object) -> None:
        if isinstance(message, onnx.TensorProto) and message.data_location:
            entries = {e.key: e.value for e in message.external_data}
            start, length = int(entries["offset"]), int(entries["length"])
            message.raw_data = data[start : start + length]
            message.ClearField("external_data")
            message.ClearField("data_location")
        for field, value in message.ListFields():  # type: ignore[attr-defined]
            if field.message_type is not None:
                for item in [value] if hasattr(value, "ListFields") else value:
                    walk(item)

    walk(found)
    return found


@pytest.mark.parametrize("sizes", [(), (1,), (256,), (257,), (5000, 3, 40000)])
def test_the_outline_is_the_model_without_its_weights(sizes: tuple[int, ...]) -> None:
    proto = model(*sizes)
    data = proto.SerializeToString()
    outline = protobuf.strip_weights(data)
    assert len(outline) <= len(data) - 4 * sum(s * 4 for s in sizes if s > 1000) // 2
    assert restored(data) == proto


def test_fields_in_any_order_and_in_pieces() -> None:
    """A message may come in pieces, which protobuf joins."""
    proto = model(5000)
    graph = proto.graph.SerializeToString()
    rest = onnx.ModelProto()
    rest.CopyFrom(proto)
    rest.ClearField("graph")
    extra = onnx.GraphProto(initializer=[numpy_helper.from_array(np.ones(2000, np.float32), "z")])
    pieces = protobuf.encode_delimited(7, graph) + rest.SerializeToString()
    pieces += protobuf.encode_delimited(7, extra.SerializeToString())
    assert restored(pieces) == onnx.ModelProto.FromString(pieces)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_model_or_refused(data: bytes) -> None:
    try:
        found = protobuf.strip_weights(data)
    except protobuf.Malformed:
        return
    assert len(found) <= len(data), "nothing here is large enough to be taken out"


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_flipped_bit_never_breaks_the_walk(data: st.DataObject) -> None:
    content = bytearray(model(300).SerializeToString())
    at = data.draw(st.integers(0, len(content) * 8 - 1))
    content[at // 8] ^= 1 << at % 8
    try:
        protobuf.strip_weights(bytes(content))
    except protobuf.Malformed as error:
        assert str(error)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63])
def test_varints(value: int) -> None:
    assert protobuf.read_varint(protobuf.encode_varint(value), 0, 10) == (
        value,
        len(protobuf.encode_varint(value)),
    )


def test_a_tensor_that_says_its_data_is_inside_is_still_held() -> None:
    """onnx writes ``data_location = DEFAULT`` behind the data of what was external once."""
    proto = model(5000)
    for tensor in proto.graph.initializer:
        tensor.data_location = onnx.TensorProto.DEFAULT
    found = onnx.ModelProto.FromString(protobuf.strip_weights(proto.SerializeToString()))
    assert found.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL


def listed(folder: Path, ir_version: int) -> Path:
    """Write a model whose weight is also an input, as exporters did for years."""
    text = """<ir_version: VERSION, opset_import: ["": 17]>
    g (float[1,4] x, float[4,3] w) => (float[1,3] y)
      <float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { y = MatMul(x, w) }"""
    path = folder / f"ir{ir_version}.onnx"
    onnx.save(onnx.parser.parse_model(text.replace("VERSION", str(ir_version))), path)
    return path


@pytest.mark.parametrize("ir_version", [4, 8, 10])
def test_fixed_takes_initializers_out_of_the_inputs(tmp_path: Path, ir_version: int) -> None:
    path = listed(tmp_path, ir_version)
    content = protobuf.drop_initializer_inputs(path)
    assert content is not None
    found, whole = onnx.ModelProto.FromString(content), onnx.load(path)
    assert [value.name for value in found.graph.input] == ["x"]
    del whole.graph.input[1]
    assert found == whole


def test_fixed_leaves_what_cannot_be_overridden(tmp_path: Path) -> None:
    assert protobuf.drop_initializer_inputs(listed(tmp_path, 3)) is None
    onnx.save(model(5000), tmp_path / "plain.onnx")
    assert protobuf.drop_initializer_inputs(tmp_path / "plain.onnx") is None


# A model file's identity, told without its weights in memory.


TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
  a = Add(x, w)
  y = If (c) <then_branch = t () => (float[N,4] p) { p = Relu(a) },
              else_branch = e () => (float[N,4] q) { b = Neg(a) q = Abs(b) }>
}
"""


def test_the_digest_is_the_models_and_all_nodes_count(tmp_path: Path) -> None:
    path = tmp_path / "one.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    assert read_identity(path) == (file.compute_digest(path), 5)


def test_external_data_are_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    model = onnx.parser.parse_model(TEXT)
    weights = onnx.numpy_helper.from_array(np.arange(4096, dtype=np.float32), "big")
    model.graph.initializer.append(weights)
    onnx.save(model, path, save_as_external_data=True, location="two.data")
    first = read_identity(path)
    assert first == (file.compute_digest(path), 5)
    data = bytearray((tmp_path / "two.data").read_bytes())
    data[-1] ^= 1
    (tmp_path / "two.data").write_bytes(data)
    assert read_identity(path)[0] not in (first[0], "") and read_identity(path)[
        0
    ] == file.compute_digest(path)


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    for content in (b"", b"not a model", b"\x0a\xff"):
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(BadModel, match=r"x\.onnx cannot be read"):
            read_identity(tmp_path / "x.onnx")
    with pytest.raises(BadModel, match="cannot be read"):
        read_identity(tmp_path / "none.onnx")
