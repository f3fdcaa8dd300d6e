"""Several models in one command: a table with a row each, resumed without measuring again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from ortune.cli.main import main
from ortune.core.errors import BadSettings
from ortune.search import each
from ortune.search.request import Optimize


def write_model(path: Path, op: str) -> Path:
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g (float[4,8] x) => (float[4,8] y) {{
        once = Identity(x)
        y = {op}(once)
    }}"""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(parser.parse_model(text), path)
    return path


def test_a_model_that_fails_is_a_row_and_nothing_is_measured_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fine, torn = write_model(Path("zoo/fine.onnx"), "Relu"), Path("zoo/torn.onnx")
    torn.write_bytes(fine.read_bytes()[:20])
    args = ["optimize", str(torn), str(fine), "-o", "runs", "--time", "1s", "--json"]
    args += ["--on", "cpu(threads=1)", "--quiet"]

    def run() -> dict[str, Any]:
        assert main(args) == 2
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    broken, answered = run()["models"]
    assert "torn.onnx" in broken["error"] and broken["fix"] and "best" not in broken
    assert answered["error"] is None and answered["best"]["speedup"]
    assert not Path("runs/torn").exists() and Path("runs/fine/report.html").is_file()
    page = Path("runs/summary.html").read_text(encoding="utf-8")
    assert "1 of 2 models answered" in page and broken["fix"] in page
    ledger = Path("runs/fine/ledger.jsonl").read_bytes()
    assert run()["models"][1] == answered
    assert Path("runs/fine/ledger.jsonl").read_bytes() == ledger


def test_options_of_one_job_are_refused(tmp_path: Path) -> None:
    models = [write_model(tmp_path / f"{name}.onnx", "Relu") for name in "ab"]
    with pytest.raises(BadSettings, match="--evaluate"):
        next(each.run(Optimize(models, evaluate="score.py:score", out=tmp_path / "runs")))
    assert not (tmp_path / "runs").exists()


def test_names_tell_models_apart() -> None:
    assert list(each.name_apart([Path("zoo/a.onnx"), Path("b.onnx")])) == ["a", "b"]
    assert list(each.name_apart([Path("x/model.onnx"), Path("y/model.onnx")])) == [
        "x-model",
        "y-model",
    ]
    with pytest.raises(BadSettings, match="two models are called"):
        each.name_apart([Path("a.onnx"), Path("a.ort")])
