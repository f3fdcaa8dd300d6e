"""Shares of channels become groups of one convolution, and groups wider ones."""

import numpy as np
import pytest
from tests.unit.quantizing import quantize
from tests.unit.rewriting import loaded, network, node, normal, ops, transformed

from ortune.core.errors import BadSettings
from ortune.graph.ir.edit import read_attribute, take_notes
from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.group_convs import GroupConvs
from ortune.transforms.widen_groups import WidenGroups


def one_of(nodes: object, op: str) -> object:
    return next(n for n in nodes if n.op_type == op)  # type: ignore[attr-defined]


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
    assert read_attribute(one_of(after.graph, "Conv"), "group", 1) == 3 * inner  # type: ignore[arg-type]


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
    assert read_attribute(one_of(after.graph, "Conv"), "group", 1) == groups  # type: ignore[arg-type]


@pytest.mark.parametrize(("channels", "left"), [(2, 4), (3, 2), (4, 2), (32, 1)])
def test_wider_groups(channels: int, left: int) -> None:
    held = {"w": normal(16, 1, 3, 3), "b": normal(16)}
    nodes = [node("Conv", "x", "w", "b", to="y", pads=[1] * 4, group=8)]
    model = loaded(network(nodes, ["n", 8, "h", "w"], held))
    step = WidenGroups(channels=channels)
    after, count = transformed(model, step, [{"x": normal(2, 8, 3, 5)}], tolerance=1e-5)
    assert count == 1
    assert read_attribute(one_of(after.graph, "Conv"), "group", 1) == left  # type: ignore[arg-type]


def test_depthwise_and_wide_groups_stay() -> None:
    for shape, group in (((8, 1, 3, 3), 8), ((8, 4, 3, 3), 2)):
        nodes = [node("Conv", "x", "w", to="y", group=group)]
        model = loaded(network(nodes, [1, 8, 5, 5], {"w": normal(*shape)}))
        assert WidenGroups(channels=4).apply(model) == 0
    with pytest.raises(BadSettings, match="width"):
        WidenGroups(channels=0)


def test_static_int8_widens_groups_for_the_cpu_provider_alone() -> None:
    nodes = [node("Conv", "x", "w", to="h", group=8, pads=[1] * 4), node("Conv", "h", "v", to="y")]
    held = {"w": normal(16, 2, 3, 3), "v": normal(4, 16, 1, 1)}
    source = loaded(network(nodes, [1, 16, 5, 5], held))
    for step, groups in (
        (Int8Static(), 1),
        (Int8Static(target="openvino"), 8),
        (Int8Static(exclude=("h",)), 8),
    ):
        model = source.clone()
        quantize(model, step, [{"x": normal(1, 16, 5, 5)}])
        assert read_attribute(one_of(model.graph, "Conv"), "group", 1) == groups  # type: ignore[arg-type]


def test_a_dense_kernel_that_does_not_fall_apart_stays() -> None:
    dense = np.zeros((4, 4, 1, 1), np.float32)
    dense[0, 3] = dense[1, 0] = dense[2, 2] = 1
    nodes = [node("Conv", "x", "w", to="y")]
    assert GroupConvs().apply(loaded(network(nodes, [1, 4, 5, 5], {"w": dense}))) == 0
