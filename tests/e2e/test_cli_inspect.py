"""inspect: one screen for a person, everything as JSON, and nothing read of gigabytes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.e2e.test_large_model import chain

from ortune.analysis.inspection.inspect import inspect
from ortune.cli.main import main

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Real graphs that ship with onnx, their weights replaced by made-up ones."""


@pytest.fixture(scope="module")
def squeezenet() -> Path:
    return LIGHT / "light_squeezenet.onnx"


def test_json_has_everything(squeezenet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(squeezenet), "--on", "cpu", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["opsets"] == {"": 9} and found["producer"] == "onnx-caffe2"
    nodes = {one["name"]: one for one in found["nodes"]}
    assert len(nodes) == len(found["nodes"]) == found["facts"]["nodes"] == 105
    assert sum(one["flops"] for one in nodes.values()) == found["facts"]["flops"]
    convs = [one for one in nodes.values() if one["op"] == "Conv"]
    assert len(convs) == 26
    first = convs[0]
    assert first["shape"] == [1, 64, 111, 111]
    assert first["flops"] == 2 * 64 * 111 * 111 * 3 * 9
    assert first["intensity"] == pytest.approx(first["flops"] / first["moved"])
    assert sum(one["nodes"] for one in found["regions"]) == 105
    assert sum(one["moved"] for one in found["regions"]) == found["moved"]
    assert found["tensors"][0]["size"] >= found["tensors"][1]["size"]
    assert {one["rule"] for one in found["lint"]} >= {"old-opset", "unnamed-nodes"}
    (asked,) = found["placement"]
    assert len(asked["nodes"]["CPUExecutionProvider"]) == 105
    assert len(found["digest"]) == 32 and found["skipped"] == ""


def test_a_person_gets_one_screen(squeezenet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(squeezenet)]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 40
    for said in ("Conv 26", "MFLOP a run", "FLOP a byte", "1 x 3 x 224 x 224", "opset 9"):
        assert said in out
    assert "--on cpu,openvino says" in out


def test_tables_on_request(squeezenet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(squeezenet), "--list", "regions,nodes,tensors"]) == 0
    out = capsys.readouterr().out
    for head in ("region", "node ", "biggest weights", "biggest activations"):
        assert head in out
    assert main(["inspect", str(squeezenet), "--shape", "data_0:2x3x224x224"]) == 2
    said = capsys.readouterr().err
    assert "data_0" in said and "fix: it is declared 1x3x224x224" in said
    assert main(["inspect", str(squeezenet), "--on", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err


def test_a_shape_in_place_of_dynamic_dimensions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = chain(tmp_path, layers=2, width=8)
    assert main(["inspect", str(path), "--shape", "x0:5x8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["flops"] == 2 * 2 * 5 * 8 * 8
    assert found["shapes"] == {"x0": [5, 8]}


def test_four_gigabytes_are_not_read(tmp_path: Path) -> None:
    path = chain(tmp_path, layers=64, width=4096)
    tracemalloc.start()
    try:
        found = inspect(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20
    assert found.digest is None and "--read-weights" in found.skipped
    assert found.facts.flops == 2 * 64 * 4096 * 4096
    assert found.facts.weight_bytes == 4 << 30
    assert {one.rule for one in found.lint} == {"unnamed-nodes"}


def test_weights_are_read_when_asked(tmp_path: Path) -> None:
    path = chain(tmp_path, layers=2, width=256)
    assert inspect(path).digest is not None
    left = inspect(path, weights=False)
    assert left.digest is None and left.skipped
    assert {one.rule for one in inspect(path, weights=True).lint} == {
        "unnamed-nodes",
        "equal-weights",
    }
