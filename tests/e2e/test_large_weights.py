"""Weights of gigabytes are packed one after the other."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.unit.quantizing import stored_bytes

from ortune.graph.io import file
from ortune.quantizers.common.block_grid import BlockSpec
from ortune.quantizers.int4_weights import Int4Weights

_MIB = 1 << 20
LAYERS, WIDTH = 34, 4096


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write matrix products in a row, 2.3 GB of zeros in a file that takes no space."""
    size = WIDTH * WIDTH * 4
    held, nodes = [], []
    for index in range(LAYERS):
        dims = [WIDTH, WIDTH]
        tensor = TensorProto(name=f"w{index}", data_type=1, dims=dims, data_location=1)
        for key, value in (("location", "m.bin"), ("offset", index * size), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        held.append(tensor)
        nodes.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH])
        for name in ("x0", f"x{LAYERS}")
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    with (tmp_path / "m.bin").open("wb") as data:
        data.truncate(LAYERS * size)
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.long
def test_two_gigabytes_are_packed_beside_little_more_than_the_result(
    model: Path, tmp_path: Path
) -> None:
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
