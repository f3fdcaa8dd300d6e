"""Weights of gigabytes cost address space, not memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.unit.quantizing import stored_bytes

from ortune.analysis.profiling.profile import profile
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.graph.io.wellformed import check_model, describe_signature
from ortune.quantizers.common.grid import BlockSpec
from ortune.quantizers.int4_weights import Int4Weights

_MIB = 1 << 20


def chain(folder: Path, layers: int, width: int) -> Path:
    """Write matrix products in a row, the weights in a file of zeros that takes no space."""
    held, nodes = [], []
    for index in range(layers):
        size = width * width * 4
        tensor = TensorProto(name=f"w{index}", data_type=1, dims=[width, width], data_location=1)
        for key, value in (("location", "m.bin"), ("offset", index * size), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        held.append(tensor)
        nodes.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, ["n", width])],
        held,
    )
    with (folder / "m.bin").open("wb") as data:
        data.truncate(layers * width * width * 4)
    path = folder / "m.onnx"
    opset = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    return path


def test_four_gigabytes_are_described_without_being_read(tmp_path: Path) -> None:
    path = chain(tmp_path, layers=64, width=4096)
    tracemalloc.start()
    try:
        model = file.load(path)
        found = read_facts(model)
        check_model(model, describe_signature(model), "nothing")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.count_file_bytes(path) > 4 << 30
    assert found.weight_bytes == 4 << 30 and found.flops == 2 * 64 * 4096 * 4096
    assert peak < 20 * _MIB


def test_saving_makes_no_second_copy(tmp_path: Path) -> None:
    path = chain(tmp_path, layers=4, width=4096)
    model = file.load(path)
    for above in (10**9, 10**6):
        tracemalloc.start()
        try:
            saved = file.save(model, tmp_path / "out" / "n.onnx", external_above=above)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert file.count_file_bytes(saved) > 256 * _MIB and peak < 20 * _MIB
    weight = file.load(saved).graph.initializers["w3"].const_value
    assert weight is not None and not np.asarray(weight.numpy())[-1].any()
    onnx.checker.check_model(saved)


@pytest.mark.long
def test_more_than_two_gigabytes_are_profiled(tmp_path: Path) -> None:
    """A file of the executed graph with its weights inside could not be written."""
    path = chain(tmp_path, layers=36, width=4096)
    found = profile(path, shapes={"x0": (1, 4096)}, ceilings=False, runs=4)
    assert [kernel.op_type for kernel in found.kernels] == ["MatMul"] * 36
    assert found.mapped == 1


# Weights of gigabytes are packed one after the other.


LAYERS, WIDTH = 34, 4096


@pytest.mark.long
def test_two_gigabytes_are_packed_beside_little_more_than_the_result(tmp_path: Path) -> None:
    model = chain(tmp_path, LAYERS, WIDTH)
    tracemalloc.start()
    try:
        loaded = file.load(model)
        assert Int4Weights().apply(loaded, {}) == LAYERS
        saved = file.save(loaded, tmp_path / "out" / "n.onnx", external_above=100 * _MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    result = LAYERS * stored_bytes(BlockSpec(4, 32, True), WIDTH, WIDTH)
    assert (
        file.count_file_bytes(model) > 2 << 30
        and result < file.count_file_bytes(saved) < result + _MIB
    )
    assert peak < result + 200 * _MIB
    onnx.checker.check_model(saved)
