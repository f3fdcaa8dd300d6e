"""Arithmetic with constants beside a layer goes into its weights, exactly, where it may."""

import numpy as np
import onnx
import pytest
from tests.unit.rewriting import loaded, model_of, network, node, normal, ops, transformed

from ortune.graph.ir.edit import const_array, take_notes
from ortune.transforms.fuse_affine import FuseAffine
from ortune.transforms.fuse_batch_norm import FuseBatchNorm

STEP = FuseAffine()


def channels(rank: int, count: int, seed: int = 3) -> np.ndarray:
    return normal(count, *(1,) * (rank - 2), seed=seed) + 2


@pytest.mark.parametrize("space", [1, 2, 3])
@pytest.mark.parametrize(("op", "group"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 2)])
def test_behind_a_convolution(op: str, group: int, space: int) -> None:
    shape = (6, 4 // group) if op == "Conv" else (4, 6 // group)
    rank = space + 2
    held = {
        "w": normal(*shape, *(2,) * space),
        "m": channels(rank, 6),
        "a": np.array(0.5, np.float32),
        "d": channels(rank, 6, seed=4)[None],
        "s": normal(1),
    }
    nodes = [
        node(op, "x", "w", to="c", group=group),
        node("Mul", "m", "c", to="t1"),
        node("Add", "t1", "a", to="t2"),
        node("Div", "t2", "d", to="t3"),
        node("Sub", "s", "t3", to="y"),
    ]
    model = network(nodes, ["n", 4, *(f"s{i}" for i in range(space))], held)
    feeds = [{"x": normal(n, 4, *(size,) * space)} for n, size in ((1, 2), (3, 5), (0, 4))]
    after, count = transformed(loaded(model), STEP, feeds, tolerance=1e-5)
    assert count == 4 and ops(after) == {op: 1}


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (2, 1), ()])
def test_behind_gemm(turned: int, bias: tuple[int, ...] | None) -> None:
    held = {"w": normal(5, 3) if turned else normal(3, 5), "m": normal(5), "a": normal(1, 5)}
    if bias is not None:
        held["c"] = np.asarray(normal(*bias, seed=1), np.float32)
    gemm = node("Gemm", "x", "w", *held.keys() & {"c"}, to="g", transB=turned, alpha=0.5, beta=2.0)
    nodes = [gemm, node("Mul", "g", "m", to="t"), node("Add", "a", "t", to="y")]
    model = network(nodes, [2, 3], held)
    after, count = transformed(loaded(model), STEP, [{"x": normal(2, 3)}], tolerance=1e-5)
    assert count == 2 and ops(after) == {"Gemm": 1}


def test_behind_matmul_one_add_is_left() -> None:
    held = {"w": normal(3, 5), "b": normal(5), "m": normal(5), "one": np.array([2], np.float32)}
    steps = [
        node("MatMul", "x", "w", to="p"),
        node("Add", "b", "p", to="t"),
        node("Mul", "t", "m", to="u"),
        node("Div", "u", "one", to="y"),
    ]
    feeds = [{"x": normal(2, 4, 3)}, {"x": normal(1, 1, 3)}, {"x": normal(0, 4, 3)}]
    model = loaded(network(steps, ["n", "t", 3], held))
    after, count = transformed(model, STEP, feeds, tolerance=1e-5)
    assert count == 2 and ops(after) == {"MatMul": 1, "Add": 1}
    scaled = [steps[0], node("Mul", "p", "m", to="y")]
    after, count = transformed(loaded(network(scaled, ["n", "t", 3], held)), STEP, feeds)
    assert count == 1 and ops(after) == {"MatMul": 1}
    biased = loaded(network([steps[0], node("Add", "p", "b", to="y")], ["n", "t", 3], held))
    assert STEP.apply(biased) == 0


@pytest.mark.parametrize("group", [1, 2])
def test_in_front_of_a_convolution(group: int) -> None:
    held = {"w": normal(6, 4 // group, 2, 2), "m": channels(4, 4), "a": normal(4, 1, 1)}
    nodes = [
        node("Sub", "x", "a", to="t"),
        node("Div", "t", "m", to="u"),
        node("Conv", "u", "w", to="y", group=group),
    ]
    model = loaded(network(nodes, ["n", 4, "h", "w"], held))
    after, count = transformed(model, STEP, [{"x": normal(2, 4, 3, 3)}], tolerance=1e-5)
    assert count == 2 and ops(after) == {"Conv": 1}


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_scale_in_front_of_padding(op: str) -> None:
    held = {"w": normal(4, 4, 3, 3), "m": channels(4, 4)}
    nodes = [node("Mul", "x", "m", to="u"), node(op, "u", "w", to="y", pads=[1, 1, 1, 1])]
    model = loaded(network(nodes, [1, 4, "h", "w"], held))
    after, count = transformed(model, STEP, [{"x": normal(1, 4, 3, 3)}], tolerance=1e-5)
    assert count == 1 and ops(after) == {op: 1}


@pytest.mark.parametrize(
    ("op", "attributes", "said"),
    [
        ("Conv", {"pads": [0, 0, 0, 1]}, "zeros of its padding"),
        ("Conv", {"auto_pad": "SAME_UPPER"}, "zeros of its padding"),
        ("ConvTranspose", {}, "borders"),
    ],
)
def test_a_shift_in_front_of_borders_is_left_alone(op: str, attributes: dict, said: str) -> None:
    held = {"w": normal(4, 4, 3, 3), "a": channels(4, 4)}
    nodes = [node("Add", "x", "a", to="u"), node(op, "u", "w", to="y", **attributes)]
    model = loaded(network(nodes, [1, 4, "h", "w"], held))
    assert STEP.apply(model) == 0 and said in take_notes(model)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 4), (2, 1, 1, 1), (1, 1, 3, 1, 1), (3,), (1, 3, 4, 1)]
)
def test_a_constant_that_is_not_one_a_channel_is_left_alone(shape: tuple[int, ...]) -> None:
    held = {"w": normal(3, 2, 1, 1), "m": normal(*shape)}
    nodes = [node("Conv", "x", "w", to="c"), node("Mul", "c", "m", to="y")]
    model = loaded(network(nodes, [1, 2, 4, 3], held))
    assert STEP.apply(model) == 0 and "one number a channel" in take_notes(model)


LEFT = {
    "end of an activation": """g (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float[1,1,1,1] w = {3}, float three = {3}, float zero = {0}, float six = {6}> {
        a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) d = Div(m, six) y = Conv(d, w) }""",
    "a caller may override": """g (float[1,1,4,4] x, float[1] m = {2.0}) => (float[1,1,4,4] y)
        <float[1,1,1,1] w = {3.0}> { c = Conv(x, w)  y = Mul(c, m) }""",
    "other operators look up rows": """g (float[2,3] x, int64[1] i) => (float[2,2] y, float[1,2] z)
        <float[3,2] w = {1, 2, 3, 4, 5, 6}, float m = {2.0}>
        { c = MatMul(x, w)  y = Mul(c, m)  z = Gather(w, i) }""",
}


@pytest.mark.parametrize(
    ("case", "said"), zip(LEFT, ("activation", "override", "other operators"), strict=True)
)
def test_what_is_not_theirs_alone_is_left(case: str, said: str) -> None:
    model = model_of(LEFT[case])
    assert STEP.apply(model) == 0 and said in take_notes(model)


def test_a_constant_that_widens_one_channel_is_left_alone() -> None:
    held = {"w": normal(1, 2, 1, 1), "m": channels(4, 3), "v": normal(2, 3, 1, 1)}
    behind = [node("Conv", "x", "w", to="c"), node("Mul", "c", "m", to="y")]
    assert STEP.apply(loaded(network(behind, [1, 2, 4, 4], held))) == 0
    front = [node("Mul", "x", "m", to="c"), node("Conv", "c", "v", to="y")]
    assert STEP.apply(loaded(network(front, [1, 1, 4, 4], held))) == 0


def test_what_else_is_read_or_not_finite_is_left_alone() -> None:
    held = {"w": normal(3, 2, 1, 1), "z": np.zeros(1, np.float32), "m": channels(4, 3)}
    pair = [node("Conv", "x", "w", to="c"), node("Mul", "c", "m", to="y")]
    for extra, outputs in (([], ("y", "c")), ([node("Relu", "c", to="r")], ("y", "r"))):
        model = loaded(network([*pair, *extra], [1, 2, 4, 4], held, outputs=outputs))
        assert STEP.apply(model) == 0
    divided = [pair[0], node("Div", "c", "z", to="y")]
    assert STEP.apply(loaded(network(divided, [1, 2, 4, 4], held))) == 0
    reciprocal = [pair[0], node("Div", "m", "c", to="y")]
    assert STEP.apply(loaded(network(reciprocal, [1, 2, 4, 4], held))) == 0
    square = [pair[0], node("Mul", "c", "c", to="y")]
    assert STEP.apply(loaded(network(square, [1, 2, 4, 4], held))) == 0


def test_one_weight_of_two_layers_with_one_scale_is_stored_once() -> None:
    held = {"w": normal(3, 3, 1, 1), "m": channels(4, 3)}
    nodes = [
        node("Conv", "x", "w", to="c"),
        node("Mul", "c", "m", to="t"),
        node("Relu", "t", to="r"),
        node("Conv", "r", "w", to="d"),
        node("Mul", "d", "m", to="y"),
    ]
    model = loaded(network(nodes, [1, 3, 4, 4], held))
    after, count = transformed(model, STEP, [{"x": normal(1, 3, 4, 4)}], tolerance=1e-5)
    assert count == 2 and len(after.graph.initializers) == 1


def test_bodies_and_half_floats() -> None:
    model = model_of("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float16[2,1] x) => (float16[2,1] y)
        <float16[1,1] w = {3}, float16 m = {2}> {
            y = If (c) <
                then_branch = t () => (float16[2,1] a) { p = MatMul(x, w)  a = Mul(p, m) },
                else_branch = e () => (float16[2,1] b) { b = Identity(x) }>
        }
    """)
    feeds = [{"c": np.array(c), "x": normal(2, 1).astype(np.float16)} for c in (True, False)]
    after, count = transformed(model, STEP, feeds, tolerance=1e-3)
    assert count == 1 and ops(after) == {"If": 1, "MatMul": 1, "Identity": 1}


def test_the_axis_attribute_of_old_opsets() -> None:
    held = {"w": normal(3, 2, 1, 1), "m": normal(3)}
    nodes = [node("Conv", "x", "w", to="c"), node("Mul", "c", "m", to="y", axis=1, broadcast=1)]
    after = loaded(network(nodes, [1, 2, 4, 4], held, opset=6))
    assert STEP.apply(after) == 1 and ops(after) == {"Conv": 1}
    weight = const_array(next(iter(after.graph)).inputs[1])
    np.testing.assert_array_equal(weight, held["w"] * held["m"].reshape(3, 1, 1, 1))


def normed(nodes: list[onnx.NodeProto], x: list, held: dict, channels: int) -> onnx.ModelProto:
    for name in ("s", "b", "m"):
        held[name] = normal(channels, seed=len(name))
    held["v"] = np.abs(normal(channels, seed=9)) + 0.1
    return network(nodes, x, held)


@pytest.mark.parametrize("biased", [True, False])
def test_batch_norm_behind_matmul(biased: bool) -> None:
    last = node("BatchNormalization", "a" if biased else "p", "s", "b", "m", "v", to="y")
    nodes = [node("MatMul", "x", "w", to="p"), node("Add", "p", "c", to="a"), last]
    if not biased:
        nodes.pop(1)
    model = normed(nodes, ["n", 3], {"w": normal(3, 5), "c": normal(5)}, 5)
    after, count = transformed(
        loaded(model), FuseBatchNorm(), [{"x": normal(n, 3)} for n in (1, 4, 0)], tolerance=1e-5
    )
    assert count == 1 and ops(after) == {"MatMul": 1, "Add": 1}


def test_batch_norm_of_the_middle_axis_of_a_product_is_left_alone() -> None:
    nodes = [
        node("MatMul", "x", "w", to="p"),
        node("BatchNormalization", "p", "s", "b", "m", "v", to="y"),
    ]
    model = normed(nodes, ["n", 5, 3], {"w": normal(3, 5)}, 5)
    assert FuseBatchNorm().apply(loaded(model)) == 0


@pytest.mark.parametrize("pad", [0, 1])
def test_batch_norm_in_front_of_a_convolution(pad: int) -> None:
    nodes = [
        node("BatchNormalization", "x", "s", "b", "m", "v", to="t"),
        node("Conv", "t", "w", to="y", pads=[pad] * 4, group=2),
    ]
    model = loaded(normed(nodes, ["n", 4, "h", "w"], {"w": normal(6, 2, 3, 3)}, 4))
    feeds = [{"x": normal(2, 4, 5, 4)}]
    after, count = transformed(model, FuseBatchNorm(), feeds, tolerance=1e-5)
    assert count == 1 - pad and len(after.graph) == 1 + pad
    assert ("zeros of its padding" in take_notes(after)) == bool(pad)
