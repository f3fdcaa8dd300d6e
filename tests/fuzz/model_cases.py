"""Models that broke something once, and their kin, made small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortune.graph.io.protobuf import encode_delimited, encode_varint
from tests.fuzz import mutate
from tests.fuzz.target import Case

_FLOAT, _INT = TensorProto.FLOAT, TensorProto.INT64
_Node = tuple[str, Sequence[str], Sequence[str]] | tuple[str, Sequence[str], Sequence[str], dict]


def _model(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto] = (),
    shape: Sequence[int | str] | None = ("n", 4),
    opset: int = 17,
    output: str = "y",
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", _FLOAT, shape)
    y = helper.make_tensor_value_info(output, _FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _node(kind: str, inputs: str, outputs: str, **more: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), outputs.split(), **more)


def _case(name: str, make: Callable[[], onnx.ModelProto], **files: bytes) -> Callable[[], Case]:
    beside = {key.replace("_", "."): value for key, value in files.items()}
    return lambda: Case(name, {"model.onnx": make().SerializeToString(), **beside})


def _bytes(name: str, content: bytes) -> Callable[[], Case]:
    return lambda: Case(name, {"model.onnx": content})


def _chain(*nodes: onnx.NodeProto, **more: object) -> Callable[[], onnx.ModelProto]:
    return lambda: _model(nodes, **more)  # type: ignore[arg-type]


def _weight(
    dims: Sequence[int], raw: bytes = b"", kind: int = _FLOAT, **external: object
) -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=kind, dims=dims)
    if external:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            tensor.external_data.add(key=key, value=str(value))
    else:
        tensor.raw_data = raw
    return _model([_node("Add", "x w", "y")], [tensor])


def _constants(*arrays: np.ndarray) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(one, f"c{at}") for at, one in enumerate(arrays)]


def _whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _sparse(dims: Sequence[int], indices: Sequence[int], values: int) -> onnx.ModelProto:
    model = _model([_node("Add", "x s", "y")])
    held = numpy_helper.from_array(np.ones(values, np.float32), "s")
    places = numpy_helper.from_array(_whole(*indices), "s_indices")
    model.graph.sparse_initializer.append(
        onnx.SparseTensorProto(values=held, indices=places, dims=dims)
    )
    return model


def _functions(*calls: tuple[str, str]) -> onnx.ModelProto:
    """Return a model whose functions call each other: (name, what it calls)."""
    model = _model([helper.make_node(calls[0][0], ["x"], ["y"], domain="local")])
    model.opset_import.append(helper.make_opsetid("local", 1))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for name, called in calls:
        node = helper.make_node(called, ["p"], ["q"], domain="local")
        model.functions.append(helper.make_function("local", name, ["p"], ["q"], [node], opsets))
    return model


def _doubling(depth: int) -> onnx.ModelProto:
    """Return functions that each call the next twice: 2**depth nodes when they are inlined."""
    model = _model([helper.make_node("f0", ["x"], ["y"], domain="local")])
    model.opset_import.append(helper.make_opsetid("local", 1))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for at in range(depth):
        domain, kind = ("local", f"f{at + 1}") if at + 1 < depth else ("", "Relu")
        nodes = [
            helper.make_node(kind, ["p"], ["m"], domain=domain),
            helper.make_node(kind, ["m"], ["q"], domain=domain),
        ]
        model.functions.append(
            helper.make_function("local", f"f{at}", ["p"], ["q"], nodes, opsets)
        )
    return model


def _deep(depth: int) -> onnx.ModelProto:
    """Return If in If; protobuf itself stops at some depth."""
    inner = helper.make_graph(
        [_node("Identity", "x", "t")], "t", [], [helper.make_tensor_value_info("t", _FLOAT, None)]
    )
    for at in range(depth):
        node = helper.make_node("If", ["c"], [f"t{at}"], then_branch=inner, else_branch=inner)
        out = helper.make_tensor_value_info(f"t{at}", _FLOAT, None)
        inner = helper.make_graph([node], "t", [], [out]) if at < depth - 1 else inner
    model = _model([helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    return model


def _many(count: int, named: bool) -> bytes:
    """Return a model of very many nodes; unnamed ones are four bytes each."""
    model = _model([_node("Relu", "x", "y")])
    payload = model.graph.SerializeToString()
    node = encode_delimited(4, b"R") if not named else b""
    if named:
        nodes = b"".join(
            encode_delimited(
                1,
                encode_delimited(1, f"v{at - 1}".encode() if at else b"x")
                + encode_delimited(2, f"v{at}".encode())
                + encode_delimited(4, b"Relu"),
            )
            for at in range(count)
        )
    else:
        nodes = encode_delimited(1, node) * count
    head = model.SerializeToString().replace(encode_delimited(7, payload), b"")
    return head + encode_delimited(7, nodes + payload)


def _changed(change: Callable[[onnx.ModelProto], object]) -> Callable[[], onnx.ModelProto]:
    def made() -> onnx.ModelProto:
        model = _model([_node("Relu", "x", "y")])
        change(model)
        return model

    return made


def _opsets(*pairs: tuple[str, int]) -> Callable[[], onnx.ModelProto]:
    def change(model: onnx.ModelProto) -> None:
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(*pair) for pair in pairs)

    return _changed(change)


def _named(name: str) -> onnx.ModelProto:
    model = _model([helper.make_node("Relu", ["x"], [name], name=name)], output=name)
    model.graph.name = model.producer_name = model.doc_string = name
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    model.metadata_props.add(key=name, value=name)
    model.graph.node.append(helper.make_node("Nope", [name], ["o"], domain=name, a=name))
    return model


def _shaped(*dims: int) -> onnx.ModelProto:
    return _model([_node("Relu", "x", "y")], shape=dims)


def _typed(kind: int) -> onnx.ModelProto:
    model = _model([_node("Identity", "x", "y")])
    model.graph.input[0].type.tensor_type.elem_type = kind
    return model


def _convolution(**attributes: object) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w")
    return _model([_node("Conv", "x w", "y", **attributes)], [weight], shape=(1, 2, 8, 8))


def _clear(model: onnx.ModelProto, *fields: str) -> None:
    for field in fields:
        model.graph.ClearField(field)


_HUGE = (2**40, 2**40)
CASES: tuple[Callable[[], Case], ...] = (
    _bytes("empty", b""),
    _bytes("text", b"hello"),
    _bytes("zip", b"PK\x03\x04" + bytes(60)),
    _bytes("git lfs", b"version https://git-lfs.github.com/spec/v1\n"),
    _bytes("zeros", bytes(1000)),
    _bytes("ones", b"\xff" * 1000),
    _bytes("only a graph", encode_delimited(7, b"")),
    _bytes("two graphs", encode_delimited(7, b"") * 2),
    _bytes("graph in graph", encode_delimited(7, encode_delimited(7, encode_delimited(7, b"")))),
    _bytes("a length of 2**62", b"\x08\x08" + encode_varint(7 << 3 | 2) + encode_varint(2**62)),
    _bytes("groups", b"\x08\x08\x3b" * 500),
    _bytes("ten thousand nodes of nothing", _many(10_000, named=False)),
    _bytes("five thousand nodes", _many(5_000, named=True)),
    _case("cycle of two", _chain(_node("Relu", "b", "y"), _node("Relu", "y", "b"))),
    _case("cycle of one", _chain(_node("Add", "x y", "y"))),
    _case("against the order", _chain(_node("Relu", "b", "y"), _node("Relu", "x", "b"))),
    _case("made twice", _chain(_node("Relu", "x", "y"), _node("Relu", "x", "y"))),
    _case("makes its input", _chain(_node("Relu", "x", "x"), _node("Relu", "x", "y"))),
    _case("no output is made", _chain(_node("Relu", "x", "z"))),
    _case("output is input", _changed(lambda m: _clear(m, "node"))),
    _case("nothing at all", _changed(lambda m: _clear(m, "node", "input", "output"))),
    _case("no outputs", _changed(lambda m: _clear(m, "output"))),
    _case("shorter than its shape", partial(_weight, (4,), bytes(15))),
    _case("far shorter", partial(_weight, (1 << 20, 1 << 10), bytes(16))),
    _case("longer than its shape", partial(_weight, (4,), bytes(400))),
    _case("negative dims", partial(_weight, (-4,), bytes(16))),
    _case("two negative dims", partial(_weight, (-2, -2), bytes(16))),
    _case("dims of 2**80", partial(_weight, _HUGE, bytes(16))),
    _case("dims of 2**64", partial(_weight, (2**32, 2**32), bytes(16))),
    _case("dims of 2**62", partial(_weight, (2**31, 2**31), b"")),
    _case("a thousand dims", partial(_weight, (1,) * 1000, bytes(4))),
    _case("type 0", partial(_weight, (4,), bytes(16), 0)),
    _case("type 999", partial(_weight, (4,), bytes(16), 999)),
    _case("text in bytes", partial(_weight, (4,), bytes(16), TensorProto.STRING)),
    *(
        _case(f"external {key}", partial(_weight, (4,), **more), w_bin=bytes(64))
        for key, more in (
            ("negative offset", {"location": "w.bin", "offset": -16}),
            ("offset beyond", {"location": "w.bin", "offset": 64, "length": 16}),
            ("offset 2**63", {"location": "w.bin", "offset": 2**63}),
            ("offset text", {"location": "w.bin", "offset": "zero"}),
            ("negative length", {"location": "w.bin", "offset": 0, "length": -16}),
            ("other length", {"location": "w.bin", "offset": 0, "length": 8}),
            ("absolute", {"location": "/etc/passwd"}),
            ("above", {"location": "../w.bin"}),
            ("itself", {"location": "model.onnx"}),
            ("nowhere", {"location": ""}),
            ("folder", {"location": "."}),
            ("device", {"location": "/dev/zero"}),
            ("NUL", {"location": "w\0.bin"}),
            ("long", {"location": "w" * 10_000}),
            ("control", {"location": "\x1b[31mw.bin"}),
            ("no location", {"offset": 0}),
        )
    ),
    _case(
        "constant of two attributes",
        _chain(
            _node("Constant", "", "c", value_float=1.0, value_floats=[1.0, 2.0]),
            _node("Add", "x c", "y"),
        ),
    ),
    _case("opset 999", _opsets(("", 999))),
    _case("opset 0", _opsets(("", 0))),
    _case("opset -1", _opsets(("", -1))),
    _case("opset 2**62", _opsets(("", 2**62))),
    _case("no opset", _opsets()),
    _case("two opsets", _opsets(("", 17), ("", 18))),
    _case("opset 1", _opsets(("", 1))),
    _case("foreign opset", _opsets(("nope", 1))),
    _case("ir 0", _changed(lambda m: setattr(m, "ir_version", 0))),
    _case("ir 999", _changed(lambda m: setattr(m, "ir_version", 999))),
    _case("ir -1", _changed(lambda m: setattr(m, "ir_version", -1))),
    *(
        _case(f"name {name[:8]!a}", partial(_named, name))
        for name in (
            "\x1b[31mred\x07",
            "a\nb\rc",
            "\x9b2J",
            "\u202eleft",
            "n" * 100_000,
            " ",
            "\x00",
        )
    ),
    _case("dims of an input", partial(_shaped, 2**62, 4)),
    _case("large input", partial(_shaped, 1 << 20, 1 << 20)),
    _case("gigabytes of input", partial(_shaped, 1 << 16, 1 << 16)),
    _case("negative dims of an input", partial(_shaped, -1, 4)),
    _case("no dims of an input", partial(_shaped)),
    _case("many dims of an input", partial(_shaped, *([1] * 200))),
    *(
        _case(f"input of type {kind}", partial(_typed, kind))
        for kind in (0, 8, 14, 16, 17, 22, 23, 999)
    ),
    *(
        _case(f"Conv {key}", partial(_convolution, **more))  # type: ignore[arg-type]
        for key, more in (
            ("strides 0", {"strides": [0, 0]}),
            ("group 0", {"group": 0}),
            ("group -1", {"group": -1}),
            ("group 2**62", {"group": 2**62}),
            ("kernel 0", {"kernel_shape": [0, 0]}),
            ("kernel 2**62", {"kernel_shape": [2**62, 2**62]}),
            ("pads", {"pads": [-100] * 4}),
            ("pads 2**62", {"pads": [2**62] * 4}),
            ("dilations 0", {"dilations": [0, 0]}),
            ("text", {"strides": "no"}),
            ("a float", {"group": 1.5}),
            ("one stride", {"strides": [1]}),
        )
    ),
    *(
        _case(
            f"{kind} {key}", _chain(_node(kind, inputs, "y", **more), weights=weights, opset=opset)
        )
        for kind, key, inputs, more, weights, opset in (
            ("ConstantOfShape", "huge", "c0", {}, _constants(_whole(2**20, 2**20)), 17),
            ("ConstantOfShape", "negative", "c0", {}, _constants(_whole(-1, 4)), 17),
            ("Range", "huge", "c0 c1 c2", {}, _constants(*map(np.int64, (0, 2**40, 1))), 17),
            ("Range", "step 0", "c0 c1 c2", {}, _constants(*map(np.int64, (0, 8, 0))), 17),
            ("Expand", "huge", "x c0", {}, _constants(_whole(2**30, 4, 4)), 17),
            ("Tile", "huge", "x c0", {}, _constants(_whole(2**40, 2**20)), 17),
            ("Reshape", "two -1", "x c0", {}, _constants(_whole(-1, -1)), 17),
            ("Reshape", "-2", "x c0", {}, _constants(_whole(-2, 4)), 17),
            ("Reshape", "0 beyond", "x c0", {}, _constants(_whole(0, 0, 0, 0)), 17),
            ("ConstantOfShape", "gigabytes", "c0", {}, _constants(_whole(700_000_000)), 17),
            ("Range", "gigabytes", "c0 c1 c2", {}, _constants(*_whole(0, 400_000_000, 1)), 17),
            (
                "Range",
                "over 64 bits",
                "c0 c1 c2",
                {},
                _constants(*_whole(-(2**62), 2**62, 2**33)),
                17,
            ),
            ("Tile", "gigabytes", "c0 c1", {}, _constants(_whole(1), _whole(700_000_000)), 17),
            (
                "Tile",
                "nothing in the end",
                "c0 c1",
                {},
                _constants(_whole(1)[None], _whole(700_000_000, 0)),
                17,
            ),
            ("Expand", "gigabytes", "c0 c1", {}, _constants(_whole(1), _whole(700_000_000)), 17),
            (
                "OneHot",
                "gigabytes",
                "c0 c1 c2",
                {},
                _constants(_whole(1), np.int64(700_000_000), _whole(0, 1)),
                17,
            ),
            (
                "ReduceSum",
                "of nothing",
                "c0 c1",
                {"keepdims": 0},
                _constants(np.ones((0, 700_000_000), np.float32), _whole(0)),
                17,
            ),
            ("Resize", "huge", "x  c0", {}, _constants(np.full(2, 1e30, np.float32)), 17),
            (
                "OneHot",
                "huge",
                "c0 c1 c2",
                {},
                _constants(_whole(1), np.int64(2**50), _whole(0, 1)),
                17,
            ),
            ("Transpose", "perm", "x", {"perm": [0, 0, 7]}, [], 17),
            ("Softmax", "axis", "x", {"axis": 999}, [], 17),
            ("Concat", "axis", "x x", {"axis": -999}, [], 17),
            ("Gather", "axis", "x c0", {"axis": 50}, _constants(_whole(9)), 17),
            ("Split", "sizes", "x c0", {}, _constants(_whole(-1, 99)), 17),
            ("Slice", "steps", "x c0 c1 c2 c3", {}, _constants(*[_whole(0)] * 4), 17),
            ("Pad", "huge", "x c0", {}, _constants(_whole(2**40, 0, 2**40, 0)), 17),
            ("Cast", "type", "x", {"to": 999}, [], 17),
            ("Constant", "nothing", "", {}, [], 17),
            ("If", "no branches", "x", {}, [], 17),
            ("Loop", "no body", "x x x", {}, [], 17),
            ("Scan", "no body", "x", {}, [], 17),
            ("Einsum", "text", "x x", {"equation": "ij,jk->zz...9"}, [], 17),
            ("LSTM", "nothing", "x", {}, [], 17),
            ("QuantizeLinear", "nothing", "x", {}, [], 17),
            (
                "DequantizeLinear",
                "axis",
                "x c0",
                {"axis": 99},
                _constants(np.ones(4, np.float32)),
                17,
            ),
            ("MaxPool", "nothing", "x", {}, [], 17),
            ("DepthToSpace", "0", "x", {"blocksize": 0}, [], 17),
            ("Gemm", "one", "x", {}, [], 17),
            ("", "empty", "x", {}, [], 17),
        )
    ),
    *(
        _case(
            f"{kind} of {arrays[0].dtype} that wraps",
            _chain(
                _node(kind, inputs, "m", **more),
                _node("Cast", "m", "f", to=1),
                _node("Add", "f x", "y"),
                weights=_constants(*arrays),
            ),
        )
        for kind, inputs, more, arrays in (
            ("Mul", "c0 c0", {}, [_whole(2**40)]),
            ("Mul", "c0 c0", {}, [np.full(1, 70_000, np.int32)]),
            ("Add", "c0 c0", {}, [_whole(2**62)]),
            ("Sub", "c0 c1", {}, [_whole(-(2**63)), _whole(1)]),
            ("Cast", "c0", {"to": 6}, [_whole(2**63 - 1)]),
            ("Div", "c0 c1", {}, [_whole(-(2**63)), _whole(-1)]),
        )
    ),
    _case("sparse beyond", partial(_sparse, (4,), (9,), 1)),
    _case("sparse negative", partial(_sparse, (4,), (-9,), 1)),
    _case("sparse of 2**62", partial(_sparse, (2**31, 2**31), (1,), 1)),
    _case("sparse of gigabytes", partial(_sparse, (2**20, 2**14), (1,), 1)),
    _case("sparse unequal", partial(_sparse, (4,), (0, 1, 2), 2)),
    _case("sparse negative dims", partial(_sparse, (-4,), (0,), 1)),
    _case("a function that calls itself", partial(_functions, ("f", "f"))),
    _case("functions in a circle", partial(_functions, ("f", "g"), ("g", "f"))),
    _case("no such function", partial(_functions, ("f", "nope"))),
    _case("a million nodes inlined", partial(_doubling, 20)),
    _case("bodies, nine deep", partial(_deep, 9)),
    _bytes("brackets", mutate.nested(50_000).encode()),
)
"""Made when they are asked for; the large ones are far below what was seen."""
