"""Constants are computed as runtimes compute them, or not at all."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from ortune.graph.ir.evaluate import evaluate_node


def node(op: str, count: int, outputs: int = 1, **attributes: Any) -> ir.Node:
    values = [ir.val(f"v{i}") for i in range(count)]
    made = ir.node(op, values, attributes, num_outputs=outputs)
    for index, value in enumerate(made.outputs):
        value.name = f"out{index}"
    return made


def one(op: str, *arrays: NDArray, opset: int = 17, **attributes: Any) -> NDArray | None:
    found = evaluate_node(node(op, len(arrays), **attributes), list(arrays), opset)
    return None if found is None else found[0]


I = np.int64  # noqa: E741


def test_plain_cases() -> None:
    np.testing.assert_array_equal(one("Add", np.array([1, 2]), np.array(3)), [4, 5])
    np.testing.assert_array_equal(one("Div", np.array([7, 8]), np.array(2)), [3, 4])
    np.testing.assert_array_equal(one("Cast", np.array([1.9, -1.9]), to=7), [1, -1])
    np.testing.assert_array_equal(
        one("Slice", np.arange(5), np.array([1]), np.array([4])), [1, 2, 3]
    )
    split = evaluate_node(node("Split", 1, 2, axis=0), [np.arange(4)], 13)
    assert split is not None and [list(a) for a in split] == [[0, 1], [2, 3]]


def test_scalars_have_rank_0() -> None:
    found = one("Gather", np.array([3, 4]), np.array(1), axis=0)
    assert found is not None and found.shape == () and found.dtype == I


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Div", [np.array([-7]), np.array([2])], {}),  # C++ rounds towards zero
        ("Div", [np.array([7]), np.array([0])], {}),
        ("Mod", [np.array([-7]), np.array([2])], {}),
        ("Cast", [np.array([np.nan])], {"to": 7}),
        ("Cast", [np.array([1e30])], {"to": 6}),
        ("Cast", [np.array([300.0])], {"to": 2}),
        ("Cast", [np.array([1.5])], {"to": 8}),
        ("Cast", [np.array([1.5])], {"to": 22}),
        ("RandomNormalLike", [np.zeros(2, np.float32)], {}),
        ("Bernoulli", [np.zeros(2, np.float32)], {}),
        ("Resize", [np.zeros((1, 1, 2, 2), np.float32)], {}),
        ("DequantizeLinear", [np.zeros(2, np.int8), np.float32(1)], {}),
        ("Add", [np.zeros(2, ml_dtypes.bfloat16)] * 2, {}),
        ("Add", [np.array(["a"], object)] * 2, {}),
        ("Reshape", [np.zeros(3), np.array([2])], {}),
    ],
)
def test_what_is_not_certain_is_left(
    op: str, arrays: list[NDArray], attributes: dict[str, int]
) -> None:
    assert one(op, *arrays, **attributes) is None


def test_broadcasting_by_attribute_is_left() -> None:
    assert one("Add", np.zeros(2), np.zeros(2), opset=6) is None


def test_a_result_of_another_type_or_shape_than_declared_is_left() -> None:
    made = node("Add", 2)
    made.outputs[0].dtype = ir.DataType.INT32
    assert evaluate_node(made, [np.array([1]), np.array([2])], 17) is None
    made.outputs[0].type = None
    made.outputs[0].shape = ir.Shape([2])
    assert evaluate_node(made, [np.array([1]), np.array([2])], 17) is None


def test_optional_inputs_may_be_absent() -> None:
    clip = ir.node("Clip", [ir.val("x"), None, ir.val("m")])
    clip.outputs[0].name = "y"
    found = evaluate_node(
        clip, [np.array([1.0, 9.0], np.float32), None, np.array(3, np.float32)], 17
    )
    assert found is not None and list(found[0]) == [1, 3]
