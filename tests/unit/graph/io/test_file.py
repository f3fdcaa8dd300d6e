"""Models go in and come out as they were, and bad files are refused in two lines."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from ortune.core.errors import BadModel, OrtuneError
from ortune.core.facts import NEWEST_IR
from ortune.core.hardware import memory
from ortune.graph.io import file


def write(folder: Path, text: str, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return path


def store(folder: Path, graph: onnx.GraphProto, *, opset: int = 17, ir_version: int = 8) -> Path:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def linear(folder: Path, rows: int = 64, name: str = "m.onnx") -> tuple[Path, np.ndarray]:
    """Write y = x w with an initializer of rows x 64 floats."""
    weight = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64) / 100
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mul")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="licence", value="MIT")
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path, weight


def run(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    path, weight = linear(tmp_path)
    held = file.load(path).graph.initializers["w"].const_value
    assert held is not None
    array = held.numpy()
    assert not array.flags.owndata and not array.flags.writeable
    np.testing.assert_array_equal(array, weight)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_saved_model_leaves_no_pages_of_its_source_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LARGE_MAP", 1)
    path, _ = linear(tmp_path, rows=4096)
    model = file.load(path)
    assert model.graph.initializers["w"].const_value.numpy().sum()
    file.save(model, tmp_path / "n.onnx")
    _, found, after = Path("/proc/self/smaps").read_text().partition(f"{path}\n")
    assert found, "it is mapped"
    assert re.search(r"^Rss: +(\d+) kB", after, re.MULTILINE)[1] == "0"


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    path, _ = linear(tmp_path)
    model = file.load(path)
    saved = file.save(model, tmp_path / "out" / "n.onnx")
    one, two = onnx.load(path), onnx.load(saved)
    onnx.checker.check_model(two, full_check=True)
    assert two.graph.node == one.graph.node
    assert two.graph.initializer == one.graph.initializer
    assert two.metadata_props == one.metadata_props
    assert [p.name for p in saved.parent.iterdir()] == ["n.onnx"]
    x = np.ones((2, 64), np.float32)
    np.testing.assert_array_equal(run(path, x=x)[0], run(saved, x=x)[0])


def test_the_model_can_be_saved_twice(tmp_path: Path) -> None:
    model = file.load(linear(tmp_path)[0])
    one = file.save(model, tmp_path / "one.onnx")
    two = file.save(model, tmp_path / "two.onnx")
    assert one.read_bytes() == two.read_bytes()


def test_large_weights_go_to_one_data_file(tmp_path: Path) -> None:
    path, weight = linear(tmp_path)
    saved = file.save(file.load(path), tmp_path / "o" / "n.onnx", external_above=1000)
    assert sorted(p.name for p in saved.parent.iterdir()) == ["n.onnx", "n.onnx.data"]
    assert file.count_file_bytes(saved) == sum(p.stat().st_size for p in saved.parent.iterdir())
    again = file.load(saved)
    np.testing.assert_array_equal(again.graph.initializers["w"].const_value.numpy(), weight)
    x = np.ones((2, 64), np.float32)
    np.testing.assert_array_equal(run(path, x=x)[0], run(saved, x=x)[0])
    inside = file.save(again, tmp_path / "p.onnx")
    assert onnx.load(inside).graph.initializer == onnx.load(path).graph.initializer


def test_constant_nodes_and_bodies_go_to_the_data_file_too(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((40, 40), np.float32), "w")
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [40, 40])],
        [numpy_helper.from_array(np.full((40, 40), 2, np.float32), "inner")],
    )
    other = helper.make_graph(
        [helper.make_node("Add", ["x", "c"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [40, 40])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=weight),
            helper.make_node("If", ["p"], ["y"], then_branch=body, else_branch=other),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [40, 40]),
            helper.make_tensor_value_info("p", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [40, 40])],
    )
    path = store(tmp_path, graph)
    saved = file.save(file.load(path), tmp_path / "n.onnx", external_above=0)
    assert saved.stat().st_size < 3000
    x = np.random.default_rng(0).random((40, 40), np.float32)
    for choice in (np.array(True), np.array(False)):
        np.testing.assert_array_equal(run(path, x=x, p=choice)[0], run(saved, x=x, p=choice)[0])


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.int4,
        ml_dtypes.uint4,
        np.float16,
        np.bool_,
        np.int8,
        np.float64,
        np.complex64,
    ],
    ids=lambda d: np.dtype(d).name,
)
@pytest.mark.parametrize("above", [10**9, 0], ids=["inside", "outside"])
def test_every_type_of_weight_survives(tmp_path: Path, dtype: type, above: int) -> None:
    values = (np.arange(4099) % 2).astype(dtype)  # odd: the last byte of packed types is half full
    tensor = ir.serde.serialize_tensor(ir.tensor(values, name="w"))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", tensor.data_type, [4099])],
        [tensor],
    )
    path = store(tmp_path, graph, opset=21, ir_version=10)
    model = file.load(path)
    assert not list(model.graph.inputs)
    saved = file.save(model, tmp_path / "n.onnx", external_above=above)
    for source in (path, saved):
        held = file.load(source).graph.initializers["w"].const_value
        assert held is not None
        np.testing.assert_array_equal(held.numpy(), values)
        assert held.numpy().dtype == np.dtype(dtype)


def test_strings_and_typed_data_survive(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n] x) => (string[2] s, float[n] y)
        <string[2] w = {"a", "b"}, float[1] f = {1.5}>
        { s = Identity(w) y = Add(x, f) }"""
    saved = file.save(file.load(write(tmp_path, text)), tmp_path / "n.onnx")
    found = run(saved, x=np.zeros(3, np.float32))
    assert list(found[0]) == ["a", "b"]
    np.testing.assert_array_equal(found[1], np.full(3, 1.5, np.float32))


def test_initializers_listed_as_inputs_before_ir_4_are_constants(tmp_path: Path) -> None:
    text = """<ir_version: 3, opset_import: ["": 8]>
        g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"""
    model = file.load(write(tmp_path, text))
    assert [value.name for value in model.graph.inputs] == ["x"]
    saved = file.save(model, tmp_path / "n.onnx")
    onnx.checker.check_model(onnx.load(saved))
    np.testing.assert_array_equal(run(saved, x=np.zeros(2, np.float32))[0], [1, 2])


def test_defaults_of_inputs_stay_inputs(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"""
    saved = file.save(file.load(write(tmp_path, text)), tmp_path / "n.onnx")
    session = ort.InferenceSession(str(saved), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_overridable_initializers()] == ["w"]


def test_sparse_constants_become_dense(tmp_path: Path) -> None:
    def sparse(name: str, indices: np.ndarray) -> onnx.SparseTensorProto:
        values = numpy_helper.from_array(np.array([1, 2], np.float32), name)
        return helper.make_sparse_tensor(values, numpy_helper.from_array(indices, "i"), [2, 3])

    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], sparse_value=sparse("", np.array([0, 4]))),
            helper.make_node("Add", ["s", "c"], ["y"]),
        ],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        sparse_initializer=[sparse("s", np.array([[0, 1], [1, 2]]))],
    )
    path = store(tmp_path, graph)
    saved = file.save(file.load(path), tmp_path / "n.onnx")
    np.testing.assert_array_equal(run(saved)[0], [[1, 1, 0], [0, 2, 2]])


def test_functions_and_the_long_name_of_the_domain(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["ai.onnx": 17, "own": 1]>
        g (float[n] x) => (float[n] y) { y = own.twice(x) }
        <opset_import: ["": 17], domain: "own"> twice (a) => (b) { b = Add(a, a) }"""
    model = file.load(write(tmp_path, text))
    assert model.opset_imports[""] == 17
    saved = file.save(model, tmp_path / "n.onnx")
    np.testing.assert_array_equal(run(saved, x=np.ones(2, np.float32))[0], [2, 2])


def test_nodes_in_any_order_are_put_in_order(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n] x) => (float[n] y) { y = Relu(t) t = Neg(x) }"""
    model = file.load(write(tmp_path, text))
    assert [node.op_type for node in model.graph] == ["Neg", "Relu"]


def test_names_that_mean_no_size_are_dropped(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, 3, h, w] x) => (float[batch, 3, h, w] y) { y = Relu(x) }"""
    )
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[2].dim_param = "?"
        value.type.tensor_type.shape.dim[3].dim_value = -1
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    shape = file.load(path).graph.inputs[0].shape
    assert shape is not None
    assert [d if isinstance(d, int) else d.value for d in shape] == ["batch", 3, None, None]


def test_the_ir_version_is_one_that_runtimes_read(tmp_path: Path) -> None:
    path, _ = linear(tmp_path)
    model = file.load(path)
    model.ir_version = 99
    saved = file.save(model, tmp_path / "n.onnx")
    assert onnx.load(saved).ir_version == NEWEST_IR
    run(saved, x=np.ones((1, 64), np.float32))


def test_the_source_is_never_written_over(tmp_path: Path) -> None:
    path, _ = linear(tmp_path)
    before = path.read_bytes()
    model = file.load(path)
    for target in (path, tmp_path / "." / "m.onnx"):
        with pytest.raises(OrtuneError, match="is the model that was read"):
            file.save(model.clone(), target)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    with pytest.raises(OrtuneError, match="is the model that was read"):
        file.save(model, link)
    assert path.read_bytes() == before


def test_the_data_file_of_the_source_is_never_written_over(tmp_path: Path) -> None:
    first = file.save(file.load(linear(tmp_path)[0]), tmp_path / "n.onnx", external_above=0)
    model = file.load(first.rename(tmp_path / "old.onnx"))
    with pytest.raises(OrtuneError, match=r"n\.onnx\.data is the model that was read"):
        file.save(model, tmp_path / "n.onnx", external_above=0)


def test_nothing_is_left_of_a_save_that_fails(tmp_path: Path) -> None:
    model = file.load(linear(tmp_path)[0])
    (tmp_path / "blocked").write_text("a file where a folder is wanted")
    with pytest.raises(OrtuneError, match="cannot write"):
        file.save(model, tmp_path / "blocked" / "n.onnx")

    class Full(ir.LazyTensor):
        def tofile(self, stream: object) -> None:
            raise OSError(28, "No space left on device")

    held = model.graph.initializers["w"].const_value
    assert held is not None
    full = Full(lambda: held, dtype=held.dtype, shape=ir.Shape([64, 64]), name="w")
    model.graph.initializers["w"].const_value = full
    for above in (0, 10**9):
        with pytest.raises(OrtuneError, match="No space left on device"):
            file.save(model, tmp_path / "o" / "n.onnx", external_above=above)
        assert not (tmp_path / "o").exists()
    assert model.graph.initializers["w"].const_value is full


def test_the_digest_covers_the_data_and_not_the_name(tmp_path: Path) -> None:
    path, _ = linear(tmp_path)
    twin, _ = linear(tmp_path, name="twin.onnx")
    assert file.compute_digest(path) == file.compute_digest(twin)
    assert len(file.compute_digest(path)) == 32
    saved = file.save(file.load(path), tmp_path / "n.onnx", external_above=0)
    before = file.compute_digest(saved)
    data = saved.with_name("n.onnx.data")
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    assert file.compute_digest(saved) != before


@pytest.mark.parametrize("above", [0, 10**9])
def test_the_content_is_all_but_the_metadata(tmp_path: Path, above: int) -> None:
    def saved(change: Callable[[ir.Model], None], folder: str) -> Path:
        model = file.load(linear(tmp_path)[0])
        change(model)
        return file.save(model, tmp_path / folder / "n.onnx", external_above=above)

    def signs(model: ir.Model) -> None:
        model.metadata_props["ortune.steps"] = "other"

    def weighs(model: ir.Model) -> None:
        held = model.graph.initializers["w"]
        assert held.const_value is not None
        array = held.const_value.numpy().copy()
        array[-1, -1] += 1
        held.const_value = ir.tensor(array, name="w")

    def renames(model: ir.Model) -> None:
        model.graph.node(0).name = "another"

    plain = saved(lambda model: None, "plain")
    assert len(file.compute_content_digest(plain)) == 32
    assert (
        file.compute_content_digest(plain)
        == file.compute_content_digest(saved(signs, "signed"))
        != file.compute_digest(plain)
    )
    others = {file.compute_content_digest(saved(one, one.__name__)) for one in (weighs, renames)}
    assert len({file.compute_content_digest(plain), *others}) == 3


BAD = {
    "zip": (b"PK\x03\x04" + b"\0" * 50, "a zip archive"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    "html": (b"<!DOCTYPE html><html>", "an HTML or XML page"),
    "text": (b"hello, this is no model at all", "not an ONNX model"),
    "zeros": (b"\0" * 100, "not an ONNX model"),
    "ort": (b"\x1c\0\0\0ORTM" + b"\0" * 60, "ORT format"),
    "empty": (b"", "is empty"),
    "no graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "has no graph"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_model_is_refused_in_two_lines(tmp_path: Path, kind: str) -> None:
    content, wanted = BAD[kind]
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for read in (file.load, file.compute_digest, file.count_file_bytes):
        with pytest.raises(BadModel, match=wanted) as caught:
            read(path)
        assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="is not there"):
        file.load(tmp_path / "none.onnx")
    with pytest.raises(BadModel, match="is a folder"):
        file.load(tmp_path)


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path, _ = linear(tmp_path, rows=8)
    whole = path.read_bytes()
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(BadModel) as caught:
            file.load(path)
        assert len(str(caught.value).splitlines()) == 2


def outside(folder: Path, **entries: str) -> Path:
    """Write a model whose weight of 64 x 64 floats lies where the entries say."""
    tensor = TensorProto(name="w", data_type=1, dims=[64, 64], data_location=1)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])],
        [tensor],
    )
    folder.mkdir(exist_ok=True)
    return store(folder, graph)


@pytest.mark.parametrize("place", ["../w.bin", "/etc/passwd", "a/../../w.bin", "..\\w.bin", ""])
def test_data_outside_the_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64 * 64 * 4))
    path = outside(tmp_path / "home", location=place)
    with pytest.raises(BadModel, match="data outside its folder"):
        file.load(path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64 * 64 * 4))
    path = outside(tmp_path / "home", location="w.bin")
    (tmp_path / "home" / "w.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(BadModel, match="data outside its folder"):
        file.load(path)


def test_a_cache_that_links_model_and_data_works(tmp_path: Path) -> None:
    path = outside(tmp_path / "blobs", location="w.bin")
    (tmp_path / "blobs" / "w.bin").write_bytes(bytes(64 * 64 * 4))
    home = tmp_path / "snapshot"
    home.mkdir()
    for name in ("m.onnx", "w.bin"):
        (home / name).symlink_to(tmp_path / "blobs" / name)
    assert file.load(home / path.name).graph.initializers["w"].const_value is not None


def test_hard_links_work(tmp_path: Path) -> None:
    """Package managers link files of one cache into many environments."""
    path = outside(tmp_path / "home", location="w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(64 * 64 * 4))
    os.link(tmp_path / "w.bin", tmp_path / "home" / "w.bin")
    file.load(path)


def test_missing_and_short_data(tmp_path: Path) -> None:
    path = outside(tmp_path / "home", location="w.bin")
    with pytest.raises(BadModel, match=r"is missing: 'w\.bin'"):
        file.load(path)
    data = tmp_path / "home" / "w.bin"
    for length in (0, 100, 64 * 64 * 4 - 1):
        data.write_bytes(bytes(length))
        with pytest.raises(BadModel, match="is cut off: tensor 'w'"):
            file.load(path)
    data.write_bytes(bytes(64 * 64 * 4))
    file.load(path)
    path = outside(tmp_path / "home", location="w.bin", length="100")
    with pytest.raises(BadModel, match="has 100 bytes"):
        file.load(path)
    path = outside(tmp_path / "home", location="w.bin", offset="1")
    with pytest.raises(BadModel, match="is cut off"):
        file.load(path)


def test_models_that_break_the_rules(tmp_path: Path) -> None:
    broken = {
        "reads 'z'": "{ y = Add(x, z) }",
        "redeclared": "{ y = Neg(x) y = Relu(x) }",
        "nothing makes the output 'y'": "{ t = Neg(x) }",
    }
    for wanted, body in broken.items():
        text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) {body}"""
        with pytest.raises(BadModel, match=wanted) as caught:
            file.load(write(tmp_path, text))
        assert len(str(caught.value).splitlines()) == 2


def test_maps_are_refused(tmp_path: Path) -> None:
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])],
        [helper.make_value_info("z", helper.make_sequence_type_proto(kind))],
    )
    path = store(tmp_path, graph)
    with pytest.raises(BadModel, match="'z' is a map, not a tensor"):
        file.load(path)
