"""Batch normalization goes into the weights, exactly, wherever that is allowed."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit import rewriting
from tests.unit.rewriting import leaves, loaded, normal, ops, transformed

from ortune.transforms.fuse_batch_norm import FuseBatchNorm

STEP = FuseBatchNorm()


def network(
    node: onnx.NodeProto,
    x: list,
    weights: dict[str, np.ndarray],
    channels: int,
    *,
    opset: int = 17,
    extra: tuple[onnx.NodeProto, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    norm_inputs: tuple[str, ...] = ("scale", "shift", "mean", "variance"),
    **norm: object,
) -> onnx.ModelProto:
    """A node and a BatchNormalization after it."""
    names = enumerate(("scale", "shift", "mean", "variance"))
    held = weights | {name: normal(channels, seed=7 + place) for place, name in names}
    held["variance"] = np.abs(held["variance"]) + 0.1
    last = helper.make_node("BatchNormalization", ["t", *norm_inputs], ["y"], epsilon=0.01, **norm)
    return rewriting.network([node, last, *extra], x, held, opset=opset, outputs=outputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("opset", [9, 13, 14, 17])
def test_conv(bias: bool, opset: int) -> None:
    weights = {"w": normal(6, 2, 3, 3)} | ({"b": normal(6, seed=1)} if bias else {})
    node = helper.make_node("Conv", ["x", *weights], ["t"], group=2, pads=[1, 1, 1, 1])
    model = network(node, ["n", 4, "h", "w"], weights, 6, opset=opset)
    feeds = [{"x": normal(n, 4, h, h)} for n, h in ((1, 1), (2, 5), (0, 3))]
    after, count = transformed(loaded(model), STEP, feeds, tolerance=1e-5)
    assert count == 1 and ops(after) == {"Conv": 1}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_conv_transpose(group: int, bias: bool) -> None:
    weights = {"w": normal(4, 3, 2, 2)} | ({"b": normal(3 * group, seed=1)} if bias else {})
    node = helper.make_node("ConvTranspose", ["x", *weights], ["t"], group=group, strides=[2, 2])
    model = network(node, ["n", 4, "h", "w"], weights, 3 * group)
    feeds = [{"x": normal(2, 4, 3, 3)}, {"x": normal(1, 4, 1, 1)}]
    after, count = transformed(loaded(model), STEP, feeds, tolerance=1e-5)
    assert count == 1 and ops(after) == {"ConvTranspose": 1}


def test_one_dimension() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["t"])
    model = network(node, ["n", 2, "l"], {"w": normal(3, 2, 3)}, 3)
    leaves({"Conv": 1}, loaded(model), STEP, [{"x": normal(1, 2, 9)}], tolerance=1e-5)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("shape", [None, (5,), (1, 5), (1,), (2, 1), ()])
def test_gemm(turned: int, shape: tuple[int, ...] | None) -> None:
    weights = {"w": normal(5, 3) if turned else normal(3, 5)}
    if shape is not None:
        weights["c"] = np.asarray(normal(*shape, seed=1), np.float32)
    node = helper.make_node("Gemm", ["x", *weights], ["t"], transB=turned, alpha=0.5, beta=2.0)
    model = network(node, [2, 3], weights, 5)
    after, count = transformed(loaded(model), STEP, [{"x": normal(2, 3)}], tolerance=1e-5)
    assert count == 1 and ops(after) == {"Gemm": 1}


def conv() -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    return helper.make_node("Conv", ["x", "w"], ["t"]), {"w": normal(3, 2, 1, 1)}


def test_training_is_left_alone() -> None:
    node, weights = conv()
    model = network(node, [2, 2, 3, 3], weights, 3, opset=17, training_mode=1)
    model.graph.node[1].output.extend(["m", "v"])
    before = loaded(model)
    assert STEP.apply(before) == 0 and ops(before) == {"Conv": 1, "BatchNormalization": 1}


def test_old_training_forms_are_left_alone() -> None:
    node, weights = conv()
    outputs = network(node, [2, 2, 3, 3], weights, 3, opset=9)
    outputs.graph.node[1].output.extend(["m", "v", "sm", "sv"])
    attribute = network(node, [2, 2, 3, 3], weights, 3, opset=6)
    spatial = network(node, [2, 2, 3, 3], weights, 3, opset=7, spatial=0)
    for model in (outputs, attribute, spatial):
        assert STEP.apply(loaded(model)) == 0
    tested = network(node, [2, 2, 3, 3], weights, 3, opset=6, is_test=1)
    assert STEP.apply(loaded(tested)) == 1


def test_an_inner_value_that_is_read_elsewhere_is_left_alone() -> None:
    node, weights = conv()
    reader = helper.make_node("Relu", ["t"], ["z"])
    model = network(node, [2, 2, 3, 3], weights, 3, extra=(reader,), outputs=("y", "z"))
    assert STEP.apply(loaded(model)) == 0
    output = network(node, [2, 2, 3, 3], weights, 3, outputs=("y", "t"))
    assert STEP.apply(loaded(output)) == 0


def test_parameters_that_a_caller_gives_are_left_alone() -> None:
    node, weights = conv()
    model = network(
        node, [2, 2, 3, 3], weights, 3, norm_inputs=("given", "shift", "mean", "variance")
    )
    model.graph.input.append(helper.make_tensor_value_info("given", TensorProto.FLOAT, [3]))
    assert STEP.apply(loaded(model)) == 0
    default = network(node, [2, 2, 3, 3], weights, 3)
    default.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 2, 1, 1]))
    assert STEP.apply(loaded(default)) == 0


def test_weights_that_others_share_stay_for_them() -> None:
    weights = {"w": normal(3, 3, 1, 1)}
    first = helper.make_node("Conv", ["x", "w"], ["t"])
    second = helper.make_node("Conv", ["y", "w"], ["z"])
    model = network(first, ["n", 3, 2, 2], weights, 3, extra=(second,), outputs=("z",))
    leaves({"Conv": 2}, loaded(model), STEP, [{"x": normal(1, 3, 2, 2)}], tolerance=1e-5)


def test_factors_that_are_not_finite_are_left_alone() -> None:
    node, weights = conv()
    model = network(node, [2, 2, 3, 3], weights, 3)
    for tensor in model.graph.initializer:
        if tensor.name == "variance":
            tensor.CopyFrom(numpy_helper.from_array(np.full(3, -1, np.float32), "variance"))
    assert STEP.apply(loaded(model)) == 0


def test_inside_a_branch() -> None:
    node, weights = conv()
    inner = network(node, [2, 2, 3, 3], weights, 3)
    body = helper.make_graph(
        list(inner.graph.node), "then", [], [helper.make_tensor_value_info("y", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", 1, None)],
    )
    del inner.graph.node[:]
    inner.graph.node.append(
        helper.make_node("If", ["p"], ["z"], then_branch=body, else_branch=other)
    )
    inner.graph.input.append(helper.make_tensor_value_info("p", TensorProto.BOOL, []))
    inner.graph.output[0].name = "z"
    feeds = [{"x": normal(2, 2, 3, 3), "p": np.array(p)} for p in (True, False)]
    after, count = transformed(loaded(inner), STEP, feeds, tolerance=1e-5)
    assert count == 1 and ops(after) == {"If": 1, "Conv": 2}
