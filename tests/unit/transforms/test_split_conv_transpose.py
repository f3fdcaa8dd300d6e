"""Transposed convolutions become plain ones, exactly, at every size of kernel and stride."""

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.unit import rewriting
from tests.unit.rewriting import leaves, loaded, normal, ops, transformed

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.graph.analysis.facts import read_facts
from ortune.graph.ir import edit
from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.split_conv_transpose import SplitConvTranspose

STEP = SplitConvTranspose()


def network(
    weight: tuple[int, ...],
    *,
    bias: bool = False,
    behind: tuple[onnx.NodeProto, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
    **attributes: object,
) -> onnx.ModelProto:
    group = int(attributes.get("group", 1))  # type: ignore[call-overload]
    held = {"w": normal(*weight)} | ({"b": normal(weight[1] * group, seed=2)} if bias else {})
    made = "t" if behind else "y"
    layer = helper.make_node("ConvTranspose", ["x", *held], [made], name="up", **attributes)
    names = ["n", weight[0], *(f"s{i}" for i in range(len(weight) - 2))]
    return rewriting.network([layer, *behind], names, held, opset=opset, outputs=outputs)


def feeds(channels: int, *sizes: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    return [{"x": normal(batch, channels, *space)} for batch, *space in sizes]


GRID = [
    dict(zip(("k", "s", "p", "q", "e", "d"), row, strict=True))
    for row in product((1, 2, 3, 4, 5), (1, 2, 3), (0, 1), (0, 2), (0, 1), (1, 2))
]


def test_every_size_agrees_or_says_why_not() -> None:
    done = 0
    for g in GRID:
        if g["e"] >= g["s"] or 4 * g["s"] + g["d"] * (g["k"] - 1) < g["p"] + g["q"]:
            continue
        model = network(
            (2, 3, g["k"], g["k"]),
            strides=[g["s"]] * 2,
            pads=[g["p"], g["q"], g["q"], g["p"]],
            output_padding=[g["e"]] * 2,
            dilations=[g["d"]] * 2,
        )
        source = loaded(model)
        after = source.clone()
        if not STEP.apply(after):
            assert "as many multiplications" in edit.take_notes(after)
            continue
        transformed(source, STEP, feeds(2, (1, 5, 5)), tolerance=1e-5, may_grow=True)
        done += 1
    assert done >= 100


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_groups_and_sizes(group: int, bias: bool) -> None:
    model = network(
        (4, 6 // group if group < 4 else 1, 4, 4),
        bias=bias,
        group=group,
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    )
    given = feeds(4, (1, 1, 1), (2, 3, 7), (0, 3, 3))
    after, count = transformed(loaded(model), STEP, given, tolerance=1e-5, may_grow=True)
    assert count == 1 and ops(after) == {"Conv": 1, "DepthToSpace": 1}


@pytest.mark.parametrize("kernel", [(3,), (3, 2), (2, 3, 1)])
def test_stride_one_is_a_convolution(kernel: tuple[int, ...]) -> None:
    pads = [1] * len(kernel) + [0] * len(kernel)
    model = network((4, 3, *kernel), group=2, bias=True, pads=pads)
    leaves({"Conv": 1}, loaded(model), STEP, feeds(4, (2, *(4,) * len(kernel))), tolerance=1e-5)


@pytest.mark.parametrize(
    ("attributes", "kernel", "said"),
    [
        ({"strides": [2, 1]}, (3, 3), "one stride"),
        ({"strides": [2]}, (3,), "one stride"),
        ({"strides": [2, 2], "auto_pad": "SAME_UPPER"}, (3, 3), "follows from the size"),
        ({"strides": [2, 2], "output_shape": [9, 9]}, (3, 3), "follows from the size"),
        ({"strides": [3, 3]}, (1, 1), "as many multiplications"),
        ({"strides": [2, 2], "group": 2, "opset": 10}, (4, 4), "before opset 11"),
        ({"strides": [2, 2], "opset": 9}, (3, 3), "before opset 10"),
    ],
)
def test_what_has_no_such_form_is_named(
    attributes: dict, kernel: tuple[int, ...], said: str
) -> None:
    model = loaded(network((2, 3, *kernel), **attributes))
    assert STEP.apply(model) == 0 and said in edit.take_notes(model)


def test_a_weight_that_is_computed_is_left_alone() -> None:
    proto = network((2, 3, 2, 2), strides=[2, 2])
    proto.graph.input.append(
        helper.make_tensor_value_info(
            "w", TensorProto.FLOAT, list(proto.graph.initializer[0].dims)
        )
    )
    model = loaded(proto)
    assert STEP.apply(model) == 0 and "not constant" in edit.take_notes(model)


def test_old_opsets_have_the_one_order_that_is_written() -> None:
    model = loaded(network((2, 3, 4, 4), strides=[2, 2], pads=[1] * 4, opset=9))
    leaves(
        {"Conv": 1, "DepthToSpace": 1},
        model,
        STEP,
        feeds(2, (1, 3, 3)),
        tolerance=1e-5,
        may_grow=True,
    )


def test_an_activation_moves_to_the_convolution() -> None:
    relu = helper.make_node("Relu", ["t"], ["y"], name="act")
    model = loaded(network((2, 3, 4, 4), strides=[2, 2], pads=[1] * 4, behind=(relu,)))
    given = feeds(2, (1, 4, 4))
    after, _ = transformed(model, STEP, given, tolerance=1e-5, may_grow=True)
    assert [node.op_type for node in after.graph] == ["Conv", "Relu", "DepthToSpace"]


def test_an_activation_stays_where_the_tensor_before_it_is_read_too() -> None:
    relu = helper.make_node("Relu", ["t"], ["y"], name="act")
    model = loaded(network((2, 3, 2, 2), strides=[2, 2], behind=(relu,), outputs=("y", "t")))
    after, _ = transformed(model, STEP, feeds(2, (1, 4, 4)), tolerance=1e-5, may_grow=True)
    assert [node.op_type for node in after.graph] == ["Conv", "DepthToSpace", "Relu"]


def test_static_int8_asks_for_it_on_the_cpu_provider_alone() -> None:
    found = read_facts(loaded(network((2, 3, 4, 4), strides=[2, 2])))
    assert [step.name() for step in Int8Static().prepares(found, Cpu())] == [
        "split-conv-transpose",
        "depth-to-space-nhwc",
    ]
    for quantizer in (Int8Static(target="openvino"), Int8Static(upsample=False)):
        assert not list(quantizer.prepares(found, Openvino()))
    model = loaded(network((2, 3, 4, 4)))
    STEP.apply(model)
    assert not list(Int8Static().prepares(read_facts(model), Cpu()))
