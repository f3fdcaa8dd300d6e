"""Constants are computed as runtimes compute them, or not at all."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from ortune.graph.ir.evaluate import bound_output_bytes, evaluate_node


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
    assert one("Pow", np.array(3), np.array(2)) == 9 and one("ReduceProd", np.array([3, 4])) == 12
    assert one("ReduceSum", np.array([-3, 4])) == 1 and one("ReduceMean", np.array([3, 4])) == 3
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
        # onnxruntime computes these in doubles, which end where 64 bits wrap around
        ("Pow", [np.array([2**62, 3]), np.array([3, 2])], {}),
        ("ReduceSum", [np.array([2**62, 2**62])], {}),
        ("ReduceSum", [np.array([2**30, 2**30], np.int32)], {}),
        ("ReduceProd", [np.array([2**40, 2**40])], {}),
        ("ReduceMean", [np.array([-3, 0])], {}),
        ("Range", [np.array(2**62), np.array(2**62 + 3), np.array(1)], {}),
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


def ints(*numbers: int) -> NDArray:
    return np.array(numbers, I)


AMPLIFIED: list[tuple[str, list[NDArray], dict[str, Any]]] = [
    ("ConstantOfShape", [ints(700_000_000)], {}),
    ("Range", [np.array(0), np.array(400_000_000), np.array(1)], {}),
    ("Range", [np.array(-(2**62)), np.array(2**62), np.array(2**33)], {}),  # 64 bits overflow
    ("Range", [np.float32(0), np.float32(1), np.float32(1e-30)], {}),
    ("Tile", [np.ones(1, np.float32), ints(700_000_000)], {}),
    ("Tile", [np.ones((1, 1), np.float32), ints(700_000_000, 0)], {}),  # copied, then dropped
    ("Tile", [np.ones((4, 1), np.float32), ints(2**62 + 1, 1)], {}),
    ("Expand", [np.ones(1, np.float32), ints(700_000_000)], {}),
    ("OneHot", [ints(1), np.array(700_000_000), np.array([0, 1], np.float32)], {}),
    ("OneHot", [ints(1), np.array(7e8), np.array([0, 1], np.float32)], {}),
    ("EyeLike", [np.broadcast_to(np.float32(0), (26_000, 26_000))], {}),
    ("Add", [np.ones((30_000, 1), np.float32), np.ones((1, 30_000), np.float32)], {}),
    ("Clip", [np.ones((30_000, 1)), np.ones((1, 30_000))], {}),
    ("Where", [np.ones((900, 1, 1), bool), np.ones((900, 1)), np.ones(900)], {}),
    ("MatMul", [np.ones((30_000, 1), np.float32), np.ones((1, 30_000), np.float32)], {}),
    ("MatMul", [np.ones((30_000, 0), np.float32), np.ones((0, 30_000), np.float32)], {}),
    ("Gather", [np.ones((1, 20_000), np.float32), np.zeros(20_000, I)], {}),
    ("GatherND", [np.ones((1, 20_000), np.float32), np.zeros((20_000, 1), I)], {}),
    ("ReduceSum", [np.ones((0, 700_000_000), np.float32), ints(0)], {"keepdims": 0}),
    ("NonZero", [np.ones((1,) * 20 + (1 << 20,), bool)], {}),
    ("Concat", [np.ones(1 << 22)] * 40, {"axis": 0}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), AMPLIFIED)
def test_a_large_result_is_refused_before_memory_is_taken(
    op: str, arrays: list[NDArray], attributes: dict[str, Any]
) -> None:
    tracemalloc.start()
    try:
        assert one(op, *arrays, **attributes) is None
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_a_product_that_takes_minutes_is_refused() -> None:
    wide = np.ones((4096, 4096), np.int32)
    began = time.process_time()
    assert one("MatMul", wide, wide) is None
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("ConstantOfShape", [ints(3, 5)], {}),
        ("Range", [np.array(9), np.array(-3), np.array(-2)], {}),
        ("Range", [np.float32(0), np.float32(1), np.float32(0.3)], {}),
        ("Tile", [np.ones((2, 3)), ints(2, 3)], {}),
        ("Expand", [np.ones((2, 1)), ints(4, 1, 5)], {}),
        ("OneHot", [ints(1, 2), np.array(7), np.array([0.0, 1.0])], {}),
        ("EyeLike", [np.ones((3, 4))], {}),
        ("Add", [np.ones((2, 1)), np.ones((3, 1, 4))], {}),
        ("Where", [np.ones((2, 1), bool), np.ones(3), np.ones((4, 1, 1))], {}),
        ("MatMul", [np.ones((5, 2, 3)), np.ones((3, 4))], {}),
        ("MatMul", [np.ones(3), np.ones(3)], {}),
        ("Gather", [np.ones((2, 5)), np.zeros((2, 3), I)], {"axis": 1}),
        ("GatherND", [np.ones((2, 3, 4)), np.zeros((2, 5, 1), I)], {"batch_dims": 1}),
        ("GatherElements", [np.ones((2, 3)), np.zeros((2, 2), I)], {"axis": 1}),
        ("ReduceSum", [np.ones((0, 6)), ints(0)], {"keepdims": 0}),
        ("NonZero", [np.ones((2, 3))], {}),
        ("Concat", [np.ones((2, 3)), np.ones((2, 1))], {"axis": 1}),
        ("Shape", [np.array(1.0)], {}),
        ("Size", [np.ones((0, 3))], {}),
        ("Unsqueeze", [np.array(2.0), ints(0)], {}),
        ("Clip", [np.ones(3), np.array(0.0), np.array(0.5)], {}),
        ("ScatterND", [np.ones((4, 2)), np.zeros((3, 1), I), np.ones((3, 2))], {}),
    ],
)
def test_the_bound_holds(op: str, arrays: list[NDArray], attributes: dict[str, Any]) -> None:
    made = node(op, len(arrays), **attributes)
    bound = bound_output_bytes(made, arrays)
    found = evaluate_node(made, arrays, 17)
    assert found is not None and sum(array.nbytes for array in found) <= bound < np.inf
    assert evaluate_node(made, arrays, 17, largest=0) is None
