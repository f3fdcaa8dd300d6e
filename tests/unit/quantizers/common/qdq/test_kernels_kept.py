"""What follows a layer does not keep it out of its integer kernel.

onnxruntime optimizes a toy, and what it made of it is counted: a layer that int8-static took must
have become an integer kernel, whatever follows. The long tests take every layer with every
activation and everything behind it.
"""

from pathlib import Path

import pytest
from tests.unit.quantizers.common.qdq.kernel_toys import (
    ACTIVATIONS,
    BEHIND_CONVOLUTIONS,
    BEHIND_PRODUCTS,
    CONVOLUTIONS,
    PRODUCTS,
    kernels,
    toy,
)
from tests.unit.quantizing import model_of, normal, ops, optimized, quantize

from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.simplify import Simplify


@pytest.mark.parametrize(
    ("line", "activation", "behind", "form"),
    [
        ("Gemm", "Relu", "float layer", "matrix"),
        ("Gemm", "Relu6", "float", "matrix"),
        ("Gemm", "both", "layer", "matrix"),
        ("MatMul, Add", "Relu", "float", "matrix"),
        ("MatMul", "Relu", "float", "sequence"),
        ("Gemm", "Relu", "layer and float", "matrix"),
        ("Gemm", "Relu", "output", "matrix"),
        ("Gemm", "Relu", "two layers", "matrix"),
    ],
)
def test_a_product_stays_integer(
    line: str, activation: str, behind: str, form: str, tmp_path: Path
) -> None:
    left = ("n_z",) if behind == "float layer" else ()
    model = toy(PRODUCTS[line], activation, BEHIND_PRODUCTS[behind], form)
    found = kernels(model, Int8Static(exclude=left), form, tmp_path)
    assert found.taken == found.integer, found.kernels
    assert found.float == len(left), found.kernels
    assert found.db > 20


def test_a_product_that_a_layer_and_the_caller_read_stays_integer(tmp_path: Path) -> None:
    model = model_of(
        "g (float[b,32] x) => (float[b,32] y, float[b,32] z) { y = Gemm(x, w) z = Gemm(y, v) }",
        {"w": normal(32, 32, scale=0.2), "v": normal(32, 32, seed=1, scale=0.2)},
    )
    found = kernels(model, Int8Static(), "matrix", tmp_path)
    assert (found.taken, found.integer, found.float) == (2, 2, 0)
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_nothing_is_put_where_the_kernel_is_whole() -> None:
    model = toy(PRODUCTS["Gemm"], "Relu", BEHIND_PRODUCTS["layer"], "matrix")
    quantize(model, Int8Static(), [{"x": normal(5, 32)}])
    assert "Sum" not in ops(model)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("line", ["Conv", "Add", "MaxPool"])
def test_a_convolution_absorbs_what_cuts_at_zero(
    line: str, symmetric: bool, tmp_path: Path
) -> None:
    model = toy(CONVOLUTIONS[line], "Relu6", BEHIND_CONVOLUTIONS["layer"], "image")
    found = kernels(model, Int8Static(symmetric=symmetric), "image", tmp_path)
    assert found.taken == found.integer
    assert found.halves == 2, found.kernels
    assert not found.kernels["Clip"]


def test_a_relu_behind_a_pool_stays_there_for_who_leaves_the_pool_in_float() -> None:
    model = toy(CONVOLUTIONS["MaxPool"], "Relu", BEHIND_CONVOLUTIONS["layer"], "image")
    quantize(model, Int8Static(exclude=("n_y",)), [{"x": normal(2, 8, 8, 8)}])
    found = ops(model)
    assert found.index("MaxPool") < found.index("Relu")


def test_simplify_leaves_what_keeps_a_kernel(tmp_path: Path) -> None:
    model = toy(PRODUCTS["Gemm"], "Relu", BEHIND_PRODUCTS["float"], "matrix")
    quantize(model, Int8Static(), [{"x": normal(5, 32)}])
    Simplify().apply(model)
    assert "QGemm" in optimized(model, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("form", ["matrix", "sequence", "fixed"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("line", PRODUCTS)
def test_no_activation_keeps_a_product_in_float(
    line: str, activation: str, form: str, tmp_path: Path
) -> None:
    if line == "Gemm" and form != "matrix":
        return
    for name, behind in BEHIND_PRODUCTS.items():
        left = ("n_z",) if name == "float layer" else ()
        model = toy(PRODUCTS[line], activation, behind, form)
        found = kernels(model, Int8Static(exclude=left), form, tmp_path)
        assert found.taken == found.integer, (name, found.kernels)
        assert found.float == len(left), (name, found.kernels)
        assert found.db > 20, name


@pytest.mark.long
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("line", CONVOLUTIONS)
def test_no_activation_keeps_a_convolution_in_float(
    line: str, activation: str, symmetric: bool, tmp_path: Path
) -> None:
    for name, behind in BEHIND_CONVOLUTIONS.items():
        model = toy(CONVOLUTIONS[line], activation, behind, "image")
        found = kernels(model, Int8Static(symmetric=symmetric), "image", tmp_path)
        assert found.taken == found.integer, (name, found.kernels)
        assert found.float == 0, (name, found.kernels)
        assert found.db > 20, name


CUT = ("Relu", "Relu6", "from 0")


@pytest.mark.long
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("activation", [*CUT, "LeakyRelu", "Sigmoid", "SiLU"])
@pytest.mark.parametrize("line", ["Conv", "Add", "Mul", "AveragePool", "MaxPool"])
def test_no_pair_is_left_between_two_convolutions(
    line: str, activation: str, symmetric: bool, tmp_path: Path
) -> None:
    model = toy(CONVOLUTIONS[line], activation, BEHIND_CONVOLUTIONS["layer"], "image")
    found = kernels(model, Int8Static(symmetric=symmetric), "image", tmp_path)
    assert found.halves == 2, found.kernels
    assert not found.kernels["Relu"] + found.kernels["Clip"]
