"""What a GPU would refuse or not record is a finding, where it is asked for and nowhere else."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ortune.analysis.inspection.inspect import inspect

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x) => (float[n,4] y) <float s = {0.5}, uint8 z = {3}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  t = Shape(d)
  y = Reshape(d, t)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = onnx.parser.parse_model(TEXT)
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def rules(model: Path, on: str, **asked: object) -> set[str]:
    found = inspect(model, on=on, **asked)
    return {one.rule for one in found.lint if one.rule.startswith(("tensorrt", "cuda"))}


def test_nothing_is_said_of_a_gpu_that_nobody_asked_for(model: Path) -> None:
    assert rules(model, "") == rules(model, "cpu") == set()


def test_cuda_is_about_graphs(model: Path) -> None:
    assert rules(model, "cuda") == {"cuda-graph-shapes", "cuda-graph-cpu"}
    assert rules(model, "cuda", shapes={"x": (2, 4)}) == {"cuda-graph-cpu"}


def test_tensorrt_is_about_pairs_too(model: Path) -> None:
    found = rules(model, "tensorrt")
    assert {"tensorrt-zero-point", "tensorrt-type", "cuda-graph-cpu"} <= found
