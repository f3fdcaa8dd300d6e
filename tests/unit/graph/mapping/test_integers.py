"""Layers with integers, counted as the runtimes at hand execute them."""

from __future__ import annotations

import platform
from pathlib import Path

import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, quantize

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.session import IntegerUse
from ortune.core.wording import format_integer_use
from ortune.graph.io import file
from ortune.graph.mapping.nodes import count_integer_layers
from ortune.quantizers.int8_static import Int8Static

TEXT = """g (float[1,16,9,9] x) => (float[1,16,5,5] y) {
  a = Relu(x)
  b = Conv<strides = [2,2]>(a, w)
  c = Conv<strides = [2,2]>(a, v)
  y = Add(b, c)
}"""
WEIGHTS = {"w": normal(16, 16, 1, 1), "v": normal(16, 16, 1, 1, seed=1)}
FEED = {"x": normal(1, 16, 9, 9, seed=2)}


def count(model: ir.Model, backend: Backend, folder: Path) -> IntegerUse | None:
    """Record a few runs of a model and count its integer layers."""
    path = folder / "model.onnx"
    file.save(model, path)
    with backend.record(path, folder) as session:
        for _ in range(6):
            session.run(FEED)
        recorded = session.recorded(4)
    return count_integer_layers(file.load(path), recorded)


def quantized(step: Int8Static) -> ir.Model:
    model = model_of(TEXT, WEIGHTS)
    quantize(model, step, [FEED])
    for index, node in enumerate(model.graph):
        node.name = node.name or f"n{index}"
    return model


def test_a_float_model_has_none(tmp_path: Path) -> None:
    assert count(model_of(TEXT, WEIGHTS), Cpu(threads=1), tmp_path) is None


def test_onnxruntime_runs_its_own_placement_in_integers(tmp_path: Path) -> None:
    use = count(quantized(Int8Static()), Cpu(threads=1), tmp_path)
    assert use is not None
    assert (use.layers, use.in_float) == (2, {})


def test_a_level_that_fuses_nothing_runs_all_in_float(tmp_path: Path) -> None:
    use = count(quantized(Int8Static()), Cpu(threads=1, level="disabled"), tmp_path)
    assert use is not None
    assert len(use.in_float) == 2
    assert "DequantizeLinear" in use.beside
    said = format_integer_use(use)
    assert said.startswith("0 of 2 layers with integers run in integers; 2 in float")
    assert all(name in said for name in use.in_float)


@pytest.mark.skipif(Openvino().missing() is not None, reason="needs OpenVINO")
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="OpenVINO's convolutions in integers are x86's",
)
def test_openvino_runs_strides_on_one_tensor_in_integers_only_when_written_once(
    tmp_path: Path,
) -> None:
    step = Int8Static(target="openvino")
    use = count(quantized(step), Openvino(threads=1), tmp_path)
    assert use is not None
    assert (use.layers, use.in_float) == (2, {})
    apart = quantized(step)
    for node in apart.graph:  # the strides back into the convolutions
        if node.op_type == "Conv":
            node.attributes.add(ir.AttrInt64s("strides", (2, 2)))
        if node.op_type == "MaxPool":
            node.attributes.add(ir.AttrInt64s("strides", (1, 1)))
    use = count(apart, Openvino(threads=1), tmp_path)
    assert use is not None
    assert len(use.in_float) == 2
    assert sum(use.in_float.values()) > 0, "a layer may be shorter than the clock's microsecond"
