"""--exclude-from: which nodes a file of sensitivities leaves in float."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
from tests.unit.analysis.sensitivity.test_result import found

from ortune.analysis.conversion.steps import leave_out, read_sensitive_layers
from ortune.core.errors import BadData, BadSettings
from ortune.core.result import as_json
from ortune.quantizers.common.node_filter import escape_pattern, match_nodes
from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.simplify import Simplify

REGIONS = [
    {"pattern": "Conv+Relu", "nodes": ["a", "b[0]"], "accuracy_cost": 0.02, "time_gained": 0.1},
    {"pattern": "Conv", "nodes": ["c"], "accuracy_cost": {"value": 0.005, "low": 0, "high": 0.02}},
    {"pattern": "MatMul", "nodes": ["d"], "cost": [0.001, 0.03]},
    {"pattern": "Gemm", "nodes": ["e"], "cost": 0.01},
]


def written(folder: Path, data: object) -> Path:
    path = folder / "sensitivity.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("whole", [REGIONS, {"ortune": "1", "regions": REGIONS}])
def test_nodes_above_the_threshold(tmp_path: Path, whole: object) -> None:
    assert read_sensitive_layers(written(tmp_path, whole), 0.01) == ("a", "b[0]", "d")


def test_what_sensitivity_writes_is_read_by_its_layers(tmp_path: Path) -> None:
    layered = found().regions
    regions = tuple(replace(one, layers=()) for one in layered)
    file = tmp_path / "sensitivity.json"
    file.write_text(as_json(found(regions=regions).result()))
    assert read_sensitive_layers(file, 0.05) == ("fragile", "fragile_relu")
    file.write_text(as_json(found(regions=tuple(layered)).result()))
    assert read_sensitive_layers(file, 0.05) == ("fragile",)
    assert read_sensitive_layers(file, 0.005) == ("slow", "fragile")


def test_steps_get_the_nodes_beside_their_own(tmp_path: Path) -> None:
    file = written(tmp_path, REGIONS)
    steps = leave_out([Simplify(), Int8Static(exclude=("x*",))], file, 0.025)
    assert steps == (Simplify(), Int8Static(exclude=("x*", "d")))
    assert leave_out([Int8Static()], file, None)[0] == Int8Static(exclude=("a", "b[[]0]", "d"))


@pytest.mark.parametrize("name", ["b[0]", "a*", "what?", "re:a", "plain/conv.1"])
def test_a_name_matches_itself_alone(name: str) -> None:
    nodes = [ir.node("Relu", [ir.val("x")], name=n) for n in (name, "other", "a", "b0")]
    model = ir.Model(ir.Graph([], [], nodes=nodes, opset_imports={"": 17}), ir_version=8)
    assert {n.name for n in match_nodes(model, (escape_pattern(name),), "exclude")} == {name}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{", "not JSON"),
        ({"rows": []}, "no list of regions"),
        ([3], "region 0 is not a region"),
        ([{"nodes": "a", "cost": 1}], "no list of node names"),
        ([{"nodes": ["a"]}], "no accuracy cost, but None"),
        ([{"nodes": ["a"], "cost": "much"}], "no accuracy cost, but 'much'"),
        ([{"nodes": ["a"], "cost": float("nan")}], "no accuracy cost"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, data: object, says: str) -> None:
    with pytest.raises(BadData, match=says) as raised:
        read_sensitive_layers(written(tmp_path, data), 0.01)
    assert "sensitivity" in str(raised.value.fix)


def test_a_missing_file() -> None:
    with pytest.raises(BadData, match="No such file"):
        read_sensitive_layers(Path("no-such.json"), 0.01)


def test_a_threshold_alone_or_no_step_to_tell(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"--threshold 0\.5"):
        leave_out([Int8Static()], None, 0.5)
    with pytest.raises(BadSettings, match="no step here"):
        leave_out([Simplify()], written(tmp_path, REGIONS), None)
