"""Operators in Python, as in the example, and those of an installed package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.unit import studies

import ortune as ot
from ortune.backends.cpu import Cpu
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.cli.main import main
from ortune.core.errors import BadSettings

pytest.importorskip("onnxruntime_extensions", reason="pip install onnxruntime-extensions")

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_op_python"
LIBRARY = str(EXAMPLE / "swish_ops.py")
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,8] x) => (float[n,8] y) { s = Sigmoid(x) y = Mul(s, x) }"""
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


@pytest.mark.long
def test_a_model_is_fused_onto_an_operator_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), source)
    rule = f"{EXAMPLE}/swish_rules.py:fuse_swish"
    line = ["apply", str(source), rule, "--custom-ops", LIBRARY, "-o", str(out), "--json"]
    assert main(line) == 0
    (edit,) = json.loads(capsys.readouterr().out)["edits"]
    assert edit["kept"] and edit["count"] == 1
    assert [n.op_type for n in onnx.load(out).graph.node] == ["PythonSwish"]
    with ot.load(out, custom_ops=LIBRARY) as engine:
        np.testing.assert_allclose(engine(x=X)["y"], X / (1 + np.exp(-X)), rtol=1e-5)


@pytest.mark.long
def test_a_bundle_carries_the_python_file(tmp_path: Path) -> None:
    backend = Cpu(threads=1, custom_ops=(LIBRARY, "onnxruntime-extensions"))
    bundle = pack(studies.study(tmp_path, backend=backend), tmp_path / "toy.ortune")
    named = ("custom_ops/swish_ops.py", "onnxruntime-extensions")
    assert read_bundle(bundle).manifest.custom_ops == named
    with pytest.raises(BadSettings, match="the Python module onnxruntime-extensions"):
        ot.load(bundle)
    with ot.load(bundle, custom_ops=True) as engine:
        assert not engine.fallback
        np.testing.assert_array_equal(engine(x=np.ones((1, 4), np.float32))["y"], [[2, 3, 4, 5]])


@pytest.mark.long
def test_a_package_is_named_as_it_is_installed(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
    g (string[n] x) => (string[n] y) { y = ai.onnx.contrib.StringUpper(x) }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    with ot.load(path, custom_ops="onnxruntime-extensions") as engine:
        assert engine(x=np.array(["swish"], object))["y"].tolist() == ["SWISH"]
