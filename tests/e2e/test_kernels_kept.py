"""Every layer with every activation and everything behind it: which kernels really run.

onnxruntime optimizes a toy, and what it made of it is counted: a layer that int8-static took must
have become an integer kernel, whatever follows.
"""

from __future__ import annotations

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

from ortune.quantizers.int8_static import Int8Static


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
