"""Layers side by side become one: convolutions that meet, shares of channels, products."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit.quantizing import quantize
from tests.unit.rewriting import loaded, model_of, normal, ops, transformed

from ortune.core.errors import BadSettings
from ortune.core.step import Transform
from ortune.model.graph.edit import attribute, take_notes
from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.group_convs import GroupConvs
from ortune.transforms.merge_convs import MergeConvs
from ortune.transforms.merge_products import MergeProducts
from ortune.transforms.widen_groups import WidenGroups


def node(op: str, *inputs: str, to: str, **attributes: object) -> onnx.NodeProto:
    names = to.split()
    return helper.make_node(op, list(inputs), names, name=names[0], **attributes)


def network(
    nodes: list[onnx.NodeProto],
    x: list,
    held: dict[str, np.ndarray],
    *,
    opset: int = 17,
    outputs: tuple[str, ...] = ("y",),
) -> onnx.ModelProto:
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info(n, kind, None) for n in outputs],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def one_of(nodes: object, op: str) -> object:
    return next(n for n in nodes if n.op_type == op)  # type: ignore[attr-defined]


HELD = {
    "u": normal(3, 4, 3, 3),
    "v": normal(5, 4, 3, 3, seed=1),
    "p": normal(2, 4, 1, 1, seed=2),
    "bu": normal(3),
    "bv": normal(5),
    "top": np.array(6, np.float32),
    "low": np.array(0, np.float32),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation", [None, "Relu", "Clip"])
def test_neighbours_in_a_concat(biased: bool, activation: str | None) -> None:
    limits = ("low", "top") if activation == "Clip" else ()
    nodes = [
        node("Conv", "x", "u", *(["bu"] if biased else []), to="cu", pads=[1] * 4),
        node("Conv", "x", "v", *(["bv"] if biased else []), to="cv", pads=[1] * 4),
        node("Conv", "x", "p", to="cp"),
    ]
    ends = ["cu", "cv"]
    if activation:
        nodes += [node(activation, end, *limits, to=f"r{end}") for end in ends]
        ends = [f"r{end}" for end in ends]
    nodes.append(node("Concat", "cp", *ends, to="y", axis=1))
    given = [{"x": normal(n, 4, h, h)} for n, h in ((1, 1), (2, 5), (0, 4))]
    model = loaded(network(nodes, ["n", 4, "h", "w"], HELD))
    after, count = transformed(model, MergeConvs(), given, tolerance=1e-5)
    wanted = {"Conv": 2, "Concat": 1} | ({activation: 1} if activation else {})
    assert count == 1 and ops(after) == wanted
    whole = loaded(
        network([*nodes[:2], node("Concat", "cu", "cv", to="y", axis=1)], [1, 4, 5, 5], HELD)
    )
    after, count = transformed(whole, MergeConvs(), [{"x": normal(1, 4, 5, 5)}], tolerance=1e-5)
    assert count == 1 and ops(after) == {"Conv": 1}


@pytest.mark.parametrize(
    ("one", "two", "ends"),
    [
        ({"pads": [1] * 4}, {"strides": [1, 1]}, "cu cv"),
        ({"strides": [2, 2]}, {"strides": [2, 1], "pads": [0, 0, 0, 0]}, "cu cv"),
        ({"dilations": [2, 2], "pads": [1] * 4}, {}, "cu cv"),
        ({}, {}, "cu cp cv"),
        ({}, {}, "cu cu"),
    ],
)
def test_what_differs_or_is_no_neighbour_stays(one: dict, two: dict, ends: str) -> None:
    nodes = [
        node("Conv", "x", "u", to="cu", **one),
        node("Conv", "x", "v", to="cv", **two),
        node("AveragePool", "x", to="cp", kernel_shape=[3, 3]),
        node("Concat", *ends.split(), to="y", axis=1),
    ]
    assert MergeConvs().apply(loaded(network(nodes, [1, 4, 6, 6], HELD))) == 0


def test_what_something_else_reads_stays() -> None:
    nodes = [
        node("Conv", "x", "u", to="cu"),
        node("Conv", "x", "v", to="cv"),
        node("Concat", "cu", "cv", to="y", axis=1),
    ]
    model = loaded(network(nodes, [1, 4, 6, 6], HELD, outputs=("y", "cv")))
    assert MergeConvs().apply(model) == 0
    shared = [nodes[0], node("Conv", "x", "u", to="cv"), nodes[2]]
    model = loaded(network(shared, [1, 4, 6, 6], HELD))
    assert MergeConvs().apply(model) == 0 and "read elsewhere" in take_notes(model)


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_separate_convolutions_are_split_behind(opset: int) -> None:
    nodes = [
        node("Conv", "x", "u", to="y"),
        node("Conv", "x", "v", to="cv"),
        node("Relu", "cv", to="z"),
    ]
    model = loaded(network(nodes, [1, 4, 6, 6], HELD, outputs=("y", "z"), opset=opset))
    assert MergeConvs().apply(model.clone()) == 0
    given = [{"x": normal(1, 4, 6, 6)}]
    after, count = transformed(
        model, MergeConvs(separate=True), given, tolerance=1e-5, may_grow=True
    )
    assert count == 1 and ops(after) == {"Conv": 1, "Split": 1, "Relu": 1}


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("relu", [True, False])
def test_shares_of_the_channels_become_groups(inner: int, relu: bool) -> None:
    held = {f"w{i}": normal(4, 2 // inner, 3, 3, seed=i) for i in range(3)}
    held |= {f"b{i}": normal(4, seed=i) for i in range(3)}
    held["s"] = np.array([2, 2, 2], np.int64)
    nodes = [node("Split", "x", "s", to="p0 p1 p2", axis=1)]
    nodes += [node("Conv", f"p{i}", f"w{i}", f"b{i}", to=f"c{i}", group=inner) for i in range(3)]
    if relu:
        nodes += [node("Relu", f"c{i}", to=f"r{i}") for i in range(3)]
    ends = [f"r{i}" if relu else f"c{i}" for i in range(3)]
    nodes.append(node("Concat", *ends, to="y", axis=1))
    model = loaded(network(nodes, ["n", 6, 5, 5], held))
    given = [{"x": normal(2, 6, 5, 5)}, {"x": normal(0, 6, 5, 5)}]
    after, count = transformed(model, GroupConvs(), given, tolerance=1e-5)
    assert count == 3 and ops(after) == {"Conv": 1} | ({"Relu": 1} if relu else {})
    assert attribute(one_of(after.graph, "Conv"), "group", 1) == 3 * inner  # type: ignore[arg-type]


def test_shares_that_differ_or_change_places_stay() -> None:
    held = {"a": normal(4, 2, 3, 3), "b": normal(4, 2, 1, 1), "c": normal(4, 2, 3, 3, seed=1)}
    held["s"] = np.array([2, 2], np.int64)
    split = node("Split", "x", "s", to="p q", axis=1)
    conv = [node("Conv", "p", "a", to="c0", pads=[1] * 4), node("Conv", "q", "b", to="c1")]
    model = loaded(
        network([split, *conv, node("Concat", "c0", "c1", to="y", axis=1)], [1, 4, 5, 5], held)
    )
    assert GroupConvs().apply(model) == 0 and "differ" in take_notes(model)
    alike = [node("Conv", "p", "a", to="c0"), node("Conv", "q", "c", to="c1")]
    turned = [split, *alike, node("Concat", "c1", "c0", to="y", axis=1)]
    assert GroupConvs().apply(loaded(network(turned, [1, 4, 5, 5], held))) == 0
    ordered = [split, *alike, node("Concat", "c0", "c1", to="y", axis=1)]
    model = loaded(
        network([*ordered, node("Relu", "p", to="z")], [1, 4, 5, 5], held, outputs=("y", "z"))
    )
    assert GroupConvs().apply(model) == 0 and "read elsewhere" in take_notes(model)


@pytest.mark.parametrize("groups", [2, 4])
def test_a_dense_kernel_that_falls_apart(groups: int) -> None:
    each = normal(8, 4 // groups, 3, 3)
    dense = np.zeros((8, 4, 3, 3), np.float32)
    for g in range(groups):
        rows = slice(g * 8 // groups, (g + 1) * 8 // groups)
        dense[rows, g * 4 // groups : (g + 1) * 4 // groups] = each[rows]
    nodes = [node("Conv", "x", "w", "b", to="y", pads=[1] * 4)]
    model = loaded(network(nodes, ["n", 4, "h", "w"], {"w": dense, "b": normal(8)}))
    after, count = transformed(model, GroupConvs(), [{"x": normal(2, 4, 3, 5)}], tolerance=1e-5)
    assert count == 1
    assert attribute(one_of(after.graph, "Conv"), "group", 1) == groups  # type: ignore[arg-type]


@pytest.mark.parametrize(("channels", "left"), [(2, 4), (3, 2), (4, 2), (32, 1)])
def test_wider_groups(channels: int, left: int) -> None:
    held = {"w": normal(16, 1, 3, 3), "b": normal(16)}
    nodes = [node("Conv", "x", "w", "b", to="y", pads=[1] * 4, group=8)]
    model = loaded(network(nodes, ["n", 8, "h", "w"], held))
    step = WidenGroups(channels=channels)
    after, count = transformed(model, step, [{"x": normal(2, 8, 3, 5)}], tolerance=1e-5)
    assert count == 1
    assert attribute(one_of(after.graph, "Conv"), "group", 1) == left  # type: ignore[arg-type]


def test_depthwise_and_wide_groups_stay() -> None:
    for shape, group in (((8, 1, 3, 3), 8), ((8, 4, 3, 3), 2)):
        nodes = [node("Conv", "x", "w", to="y", group=group)]
        model = loaded(network(nodes, [1, 8, 5, 5], {"w": normal(*shape)}))
        assert WidenGroups(channels=4).apply(model) == 0
    with pytest.raises(BadSettings, match="width"):
        WidenGroups(channels=0)


def test_static_int8_widens_groups_for_the_cpu_provider_alone() -> None:
    nodes = [
        node("Conv", "x", "w", to="h", group=8, pads=[1] * 4),
        node("Conv", "h", "v", to="y"),
    ]
    held = {"w": normal(16, 2, 3, 3), "v": normal(4, 16, 1, 1)}
    source = loaded(network(nodes, [1, 16, 5, 5], held))
    for step, groups in (
        (Int8Static(), 1),
        (Int8Static(target="openvino"), 8),
        (Int8Static(exclude=("h",)), 8),
    ):
        model = source.clone()
        quantize(model, step, [{"x": normal(1, 16, 5, 5)}])
        assert attribute(one_of(model.graph, "Conv"), "group", 1) == groups  # type: ignore[arg-type]


def test_a_dense_kernel_that_does_not_fall_apart_stays() -> None:
    dense = np.zeros((4, 4, 1, 1), np.float32)
    dense[0, 3] = dense[1, 0] = dense[2, 2] = 1
    nodes = [node("Conv", "x", "w", to="y")]
    assert GroupConvs().apply(loaded(network(nodes, [1, 4, 5, 5], {"w": dense}))) == 0


@pytest.mark.parametrize("biased", [0, 1, 3])
def test_three_products_become_one(biased: int) -> None:
    held = {f"w{i}": normal(4, 2 + i, seed=i) for i in range(3)}
    held |= {f"b{i}": normal(2 + i, seed=i) for i in range(3)}
    nodes = [node("MatMul", "x", f"w{i}", to=f"p{i}") for i in range(3)]
    nodes += [node("Add", f"b{i}", f"p{i}", to=f"a{i}") for i in range(biased)]
    ends = tuple(f"a{i}" if i < biased else f"p{i}" for i in range(3))
    given = [{"x": normal(*shape)} for shape in ((2, 3, 4), (0, 3, 4), (1, 1, 4))]
    model = loaded(network(nodes, ["n", "t", 4], held, outputs=ends))
    step: Transform = MergeProducts()
    after, count = transformed(model, step, given, tolerance=1e-5, may_grow=True)
    adds = {"Add": 1 if biased == 3 else biased} if biased else {}
    assert count == 2 and ops(after) == {"MatMul": 1, "Split": 1} | adds


@pytest.mark.parametrize("turned", [0, 1])
def test_gemms_become_one(turned: int) -> None:
    held = {f"w{i}": normal(3 + i, 4, seed=i) if turned else normal(4, 3 + i) for i in range(2)}
    held |= {"b0": normal(3), "b1": normal(1)}
    nodes = [
        node("Gemm", "x", f"w{i}", f"b{i}", to=f"y{i}", transB=turned, alpha=0.5, beta=2.0)
        for i in range(2)
    ]
    model = loaded(network(nodes, ["n", 4], held, outputs=("y0", "y1")))
    given = [{"x": normal(2, 4)}]
    after, count = transformed(model, MergeProducts(), given, tolerance=1e-5, may_grow=True)
    assert count == 1 and ops(after) == {"Gemm": 1, "Split": 1}


def test_products_in_a_body() -> None:
    model = model_of("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[2,1] x) => (float[2,1] y) <float[1,1] a = {3}, float[1,1] b = {2}> {
            y = If (c) <
                then_branch = t () => (float[2,1] s)
                    { p = MatMul(x, a)  q = MatMul(x, b)  s = Add(p, q) },
                else_branch = e () => (float[2,1] n) { n = Identity(x) }>
        }
    """)
    feeds = [{"c": np.array(c), "x": normal(2, 1)} for c in (True, False)]
    after, count = transformed(model, MergeProducts(), feeds, may_grow=True)
    assert count == 1 and ops(after)["Split"] == 1
