"""Files that break a rule, each in one way: what strangers may hand to any verb."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx import numpy_helper as arrays

from ortune.graph.io.protobuf import encode_delimited, encode_tag, encode_varint

Write: TypeAlias = Callable[[Path], Path]
FLOAT = TensorProto.FLOAT
ESC = "\x1b[31mred\x1b]0;title\x07\u202e"


def good() -> ModelProto:
    """Return a small model that is in order: y = Relu(x w + b), x of shape [2, 4]."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "mm"),
        helper.make_node("Add", ["h", "b"], ["s"], "add"),
        helper.make_node("Relu", ["s"], ["y"], "relu"),
    ]
    rng = np.random.default_rng(0)
    weights = [
        arrays.from_array(rng.standard_normal((4, 4)).astype(np.float32), "w"),
        arrays.from_array(np.ones(4, np.float32), "b"),
    ]
    graph = helper.make_graph(
        nodes,
        "good",
        [helper.make_tensor_value_info("x", FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", FLOAT, [2, 4])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _proto(change: Callable[[ModelProto], object]) -> Write:
    def write(folder: Path) -> Path:
        model = good()
        change(model)
        return _bytes(folder, model.SerializeToString())

    return write


def _bytes(folder: Path, data: bytes) -> Path:
    path = folder / "hostile.onnx"
    path.write_bytes(data)
    return path


def _graph(change: Callable[[GraphProto], object]) -> Write:
    return _proto(lambda model: change(model.graph))


def _weight(**fields: object) -> Write:
    """Change fields of the weight `w`; None clears one."""

    def change(graph: GraphProto) -> None:
        for name, value in fields.items():
            graph.initializer[0].ClearField(name)
            if isinstance(value, (list, tuple)):
                getattr(graph.initializer[0], name).extend(value)
            elif value is not None:
                setattr(graph.initializer[0], name, value)

    return _graph(change)


def _node(*nodes: NodeProto) -> Write:
    """Add nodes, the last of which makes `y` in the place of the Relu."""

    def change(graph: GraphProto) -> None:
        graph.node.pop()
        graph.node.extend(nodes)

    return _graph(change)


def _external(**entries: str) -> Write:
    def change(graph: GraphProto) -> None:
        tensor = graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)

    made = _graph(change)

    def write(folder: Path) -> Path:
        (folder / "data.bin").write_bytes(bytes(64))
        (folder.parent / "secret.bin").write_bytes(bytes(64))
        return made(folder)

    return write


def _raw(make: Callable[[bytes], bytes]) -> Write:
    return lambda folder: _bytes(folder, make(good().SerializeToString()))


def _spoilt(node: NodeProto) -> Write:
    """Put what is not UTF-8 in the place of MARK in a node."""

    def write(folder: Path) -> Path:
        data = _node(node)(folder).read_bytes()
        assert b"MARK" in data
        return _bytes(folder, data.replace(b"MARK", b"M\xff\xfeK"))

    return write


def _soft(**fields: str) -> NodeProto:
    node = _attribute(AttributeProto.INT, i=1)
    for name, value in fields.items():
        setattr(node.attribute[0], name, value)
    return node


def _noted() -> NodeProto:
    node = _attribute(AttributeProto.INT, i=1)
    node.metadata_props.add(key="MARK", value="v")
    return node


def _many(graph: bytes, count: int) -> Write:
    """A model whose graph repeats a field."""

    def make(data: bytes) -> bytes:
        body = graph * count
        return data + encode_tag(7) + encode_varint(len(body)) + body

    return _raw(make)


def _cycle(graph: GraphProto) -> None:
    graph.node[0].input[0] = "y"


def _unknown_domain(model: ModelProto) -> None:
    model.graph.node[2].op_type, model.graph.node[2].domain = "Spin", "evil.corp"
    model.opset_import.append(helper.make_opsetid("evil.corp", 1))


def _functions(model: ModelProto, calls: dict[str, list[str]]) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for name, others in calls.items():
        inner = [helper.make_node("Relu", ["a"], ["v0"])]
        for at, other in enumerate(others):
            inner.append(helper.make_node(other, [f"v{at}"], [f"v{at + 1}"], domain="own"))
        out = f"v{len(others)}"
        model.functions.append(
            helper.make_function("own", name, ["a"], [out], inner, opset_imports=opsets)
        )
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[2].op_type, model.graph.node[2].domain = next(iter(calls)), "own"


def _nested(depth: int) -> bytes:
    """Bytes of a graph within a node's attribute within a graph, over and over."""
    graph = b""
    for _ in range(depth):
        attribute = (
            encode_delimited(1, b"body")
            + encode_delimited(6, graph)
            + encode_varint(20 << 3)
            + encode_varint(5)
        )
        node = encode_delimited(4, b"If") + encode_delimited(5, attribute)
        graph = encode_delimited(1, node)
    return graph


def _sparse(dims: list[int], places: list[int], index_dims: list[int]) -> Write:
    def change(graph: GraphProto) -> None:
        del graph.initializer[0]
        made = graph.sparse_initializer.add()
        made.dims.extend(dims)
        made.values.CopyFrom(arrays.from_array(np.ones(2, np.float32), "w"))
        made.indices.CopyFrom(arrays.from_array(np.array(places, np.int64), "w_at"))
        made.indices.ClearField("dims")
        made.indices.dims.extend(index_dims)

    return _graph(change)


def _not_utf8(data: bytes) -> bytes:
    return data.replace(b"\x04relu", b"\x04re\xff\xfe")


def _opset(version: int) -> Write:
    return _proto(lambda model: setattr(model.opset_import[0], "version", version))


def _attribute(kind: int, **fields: object) -> NodeProto:
    node = helper.make_node("Softmax", ["s"], ["y"], "soft")
    attribute = node.attribute.add(name="axis", type=kind)
    for name, value in fields.items():
        setattr(attribute, name, value)
    return node


def _link(target: str) -> Write:
    def write(folder: Path) -> Path:
        path = folder / "hostile.onnx"
        path.symlink_to(target)
        return path

    return write


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "hostile.onnx")
    return folder / "hostile.onnx"


def _folder(folder: Path) -> Path:
    (folder / "hostile.onnx").mkdir()
    return folder / "hostile.onnx"


def _renamed(node: str, value: str) -> Write:
    def change(graph: GraphProto) -> None:
        graph.node[1].name = node
        graph.node[1].output[0] = graph.node[2].input[0] = value
        graph.initializer[0].name = graph.node[0].input[1] = f"w{value}"

    return _graph(change)


def _add(count: int) -> Callable[[GraphProto], object]:
    return lambda graph: graph.node.extend([graph.node[1]] * count)


REFUSED: dict[str, tuple[Write, str]] = {
    "empty": (lambda f: _bytes(f, b""), "is empty"),
    "text": (lambda f: _bytes(f, b"hello world"), "not an ONNX model"),
    "zeros": (lambda f: _bytes(f, bytes(4096)), "not an ONNX model"),
    "half": (_raw(lambda data: data[: len(data) // 2]), "cut off"),
    "no last byte": (_raw(lambda data: data[:-1]), "cut off"),
    "folder": (_folder, "is a folder"),
    "fifo": (_fifo, "not a regular file"),
    "device": (_link("/dev/zero"), "not a regular file"),
    "broken link": (_link("nowhere"), "is not there"),
    "no graph": (_proto(lambda model: model.ClearField("graph")), "no graph"),
    "graph is a number": (
        _raw(
            lambda data: (
                encode_varint(8) + encode_varint(8) + encode_varint(7 << 3) + encode_varint(5)
            )
        ),
        "not",
    ),
    "cycle": (_graph(_cycle), "form a cycle: "),
    "reads itself": (_node(helper.make_node("Add", ["y", "s"], ["y"], "me")), "cycle"),
    "output from nowhere": (
        _graph(lambda graph: setattr(graph.output[0], "name", "z")),
        "nothing makes the output 'z'",
    ),
    "input from nowhere": (
        _node(helper.make_node("Relu", ["ghost"], ["y"])),
        "reads 'ghost', which nothing has made",
    ),
    "one name twice": (
        _node(helper.make_node("Relu", ["s"], ["h"]), helper.make_node("Relu", ["h"], ["y"])),
        "'h'",
    ),
    "one input twice": (_graph(lambda graph: graph.input.append(graph.input[0])), "'x'"),
    "raw too short": (_weight(raw_data=bytes(60)), "60 bytes"),
    "raw too long": (_weight(raw_data=bytes(68)), "68 bytes"),
    "raw too short and large": (_weight(raw_data=bytes(4000), dims=[40, 40]), "4000 bytes"),
    "no data": (_weight(raw_data=None), "0 values"),
    "other field": (_weight(raw_data=None, int64_data=[1] * 16), "has int64_data"),
    "floats too few": (_weight(raw_data=None, float_data=[1.0] * 15), "15 values"),
    "string in raw": (_weight(data_type=TensorProto.STRING), "has raw_data"),
    "negative dim": (_weight(dims=[-4, -4]), "shape [-4, -4]"),
    "huge dim": (_weight(dims=[1 << 62, 1 << 62]), "shape"),
    "huge dim beside zero": (_weight(dims=[1 << 62, 0], raw_data=b""), "shape"),
    "many dims": (_weight(dims=[1] * 70, raw_data=bytes(4)), "70 dimensions"),
    "unknown type": (_weight(data_type=999), "data type 999"),
    "undefined type": (_weight(data_type=0), "data type 0"),
    "external outside": (_external(location="../secret.bin"), "outside its folder"),
    "external absolute": (_external(location="/etc/passwd"), "outside its folder"),
    "external nowhere": (_external(location="no.bin"), "missing"),
    "external null": (_external(location="a\0b"), "hostile.onnx"),
    "external long": (_external(location="a" * 5000), "hostile.onnx"),
    "external without location": (_external(offset="0"), "outside its folder"),
    "negative offset": (_external(location="data.bin", offset="-4"), "offset '-4'"),
    "negative length": (_external(location="data.bin", length="-64"), "length '-64'"),
    "offset of words": (_external(location="data.bin", offset="one"), "offset 'one'"),
    "offset beyond": (_external(location="data.bin", offset="4"), "cut off"),
    "huge offset": (_external(location="data.bin", offset="9" * 19), "cut off"),
    "other length": (_external(location="data.bin", length="32"), "32 bytes"),
    "sparse beyond": (_sparse([4, 4], [0, 99], [2]), "sparse tensor 'w'"),
    "sparse huge": (_sparse([1 << 20, 1 << 20], [0, 1], [2]), "sparse tensor 'w'"),
    "sparse negative": (_sparse([-4, 4], [0, 1], [2]), "sparse tensor 'w'"),
    "sparse of three indices": (_sparse([4, 4], [0, 1, 2], [3]), "sparse tensor 'w'"),
    "sparse of odd rank": (_sparse([4, 4], [0, 1, 2, 3, 4, 5], [2, 3]), "sparse tensor 'w'"),
    "opset 999": (_opset(999), "opset 999"),
    "opset -1": (_opset(-1), "opset -1"),
    "no opset": (
        _proto(lambda model: model.ClearField("opset_import")),
        "does not say which opset",
    ),
    "string attribute": (
        _node(_attribute(AttributeProto.STRING, s=b"last")),
        "attribute 'axis' is string, not int",
    ),
    "attribute of no type": (_node(_attribute(0, i=1)), "is undefined, not int"),
    "no attribute": (_node(helper.make_node("Cast", ["s"], ["y"], "c")), "no attribute 'to'"),
    "one input": (_node(helper.make_node("Add", ["s"], ["y"], "a")), "1 input, where 2"),
    "an empty input": (_node(helper.make_node("Add", ["s", ""], ["y"], "a")), "its input 'B'"),
    "cast to nothing": (
        _node(helper.make_node("Cast", ["s"], ["y"], "c", to=4242)),
        "to=4242 is no data type",
    ),
    "cast to undefined": (
        _node(helper.make_node("Cast", ["s"], ["y"], "c", to=0)),
        "to=0 is no data type",
    ),
    "domain not imported": (
        _node(helper.make_node("Spin", ["s"], ["y"], "odd", domain="evil.corp")),
        "domain 'evil.corp', which the model does not import",
    ),
    "no input": (_node(helper.make_node("Relu", [], ["y"], "r")), "0 inputs, where 1"),
    "not utf-8": (_raw(_not_utf8), "not UTF-8"),
    "input not utf-8": (_raw(lambda data: data.replace(b"\x01h", b"\x01\xff")), "not UTF-8"),
    "reference not utf-8": (_spoilt(_soft(ref_attr_name="MARK")), "not UTF-8"),
    "attribute's words not utf-8": (_spoilt(_soft(doc_string="MARK")), "not UTF-8"),
    "node's metadata not utf-8": (_spoilt(_noted()), "not UTF-8"),
    "functions in a circle": (
        _proto(lambda model: _functions(model, {"F": ["G"], "G": ["F"]})),
        "without an end",
    ),
    "functions that double": (
        _proto(
            lambda model: _functions(
                model, {f"F{n}": [f"F{n + 1}"] * 2 if n < 40 else [] for n in range(41)}
            )
        ),
        "written out",
    ),
    "functions in a row": (
        _proto(
            lambda model: _functions(
                model, {f"F{n}": [f"F{n + 1}"] if n < 900 else [] for n in range(901)}
            )
        ),
        "901 deep",
    ),
    "graphs in graphs": (
        _raw(lambda data: data + encode_delimited(7, _nested(60))),
        "hostile.onnx",
    ),
    "graphs in large graphs": (
        _raw(lambda data: data + encode_delimited(7, _nested(2000))),
        "messages within messages",
    ),
    "many nodes": (
        _many(encode_delimited(1, encode_delimited(4, b"Relu")), 300_000),
        "250,000 nodes",
    ),
    "many weights": (_many(encode_delimited(5, b"\x10\x01"), 300_000), "250,000 weights"),
    "many inputs of a node": (
        _many(encode_delimited(1, encode_delimited(1, b"") * 500), 16_000),
        "2,000,000 fields",
    ),
    "ten thousand outputs": (
        _many(encode_delimited(12, b"\x0a\x01y"), 10_001),
        "outputs, over 10,000",
    ),
    "ten thousand inputs of a node": (
        _many(encode_delimited(1, b"\x0a\x01x" * 10_001 + b"\x12\x01q" + b"\x22\x03Sum"), 1),
        "10,001 inputs or outputs, over 10,000",
    ),
    "many outputs": (_many(encode_delimited(12, b"\x0a\x00"), 300_000), "250,000 outputs"),
}
"""Name -> what writes the file into a folder, and what must be said of it."""

ODD: dict[str, Write] = {
    "no nodes": _graph(
        lambda graph: (graph.ClearField("node"), setattr(graph.output[0], "name", "x"))
    ),
    "no nodes or outputs": _graph(
        lambda graph: (graph.ClearField("node"), graph.ClearField("output"))
    ),
    "nothing": _graph(lambda graph: graph.Clear()),
    "nodes of one name": _graph(lambda graph: [setattr(n, "name", "n") for n in graph.node]),
    "control characters": _renamed(ESC, f"v{ESC}"),
    "markup": _renamed("<script>alert(1)</script>", "[bold red]x[/]"),
    "new lines": _renamed("a\n  fix: b\r", "v\nw"),
    "unknown domain": _proto(_unknown_domain),
    "unknown operator": _node(helper.make_node("Frobnicate", ["s"], ["y"], "odd")),
    "no type": _graph(lambda graph: graph.input[0].ClearField("type")),
    "undefined input": _graph(
        lambda graph: setattr(graph.input[0].type.tensor_type, "elem_type", 0)
    ),
    "negative input": _graph(
        lambda graph: setattr(graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -2)
    ),
    "wrong shape": _graph(
        lambda graph: setattr(graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 5)
    ),
    "axis beyond": _node(_attribute(AttributeProto.INT, i=99)),
    "axis far beyond": _node(_attribute(AttributeProto.INT, i=-(1 << 62))),
    "bad order": _node(helper.make_node("Transpose", ["s"], ["y"], "t", perm=[7, -9, 3])),
    "empty name": _graph(lambda graph: setattr(graph.input[0], "name", "")),
    "ir 999": _proto(lambda model: setattr(model, "ir_version", 999)),
    "ir -1": _proto(lambda model: setattr(model, "ir_version", -1)),
    "function of no domain": _proto(
        lambda model: model.functions.append(
            helper.make_function(
                "",
                "Relu",
                ["a"],
                ["c"],
                [helper.make_node("Abs", ["a"], ["c"])],
                opset_imports=[helper.make_opsetid("", 17)],
            )
        )
    ),
    "metadata of control characters": _proto(
        lambda model: (
            setattr(model, "producer_name", ESC),
            model.metadata_props.add(key=ESC, value=ESC),
        )
    ),
}
"""Name -> what writes a file that a verb may take or refuse, in words."""


def written(name: str, folder: Path) -> Path:
    """Write one of the files into a fresh folder."""
    folder.mkdir(parents=True)
    return (REFUSED[name][0] if name in REFUSED else ODD[name])(folder)


def write_good(folder: Path) -> Path:
    """Write the model that is in order."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "good.onnx"
    onnx.save(good(), path)
    return path
