"""Two environments, in which the runtimes may be of other releases, stand side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit import environments, studies

import ortune as ot
from ortune.cli.main import main
from ortune.core.errors import BadSettings
from ortune.core.result import as_json
from ortune.measurement.environments.installed import add_environment


def test_they_are_rows_of_one_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environments.linked(monkeypatch)
    add_environment("onnxruntime==1.24.4")
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    with pytest.raises(BadSettings, match="no environment 'gone'"):
        ot.bench(model, environment="gone")
    found = ot.bench(model, environment="here,ort-1.24.4", time=0.2, sets=1, self_check=True)
    assert [row["environment"] for row in found.rows] == ["here", "ort-1.24.4", "here"]
    assert set(found.environments) == {"here", "ort-1.24.4"}
    assert found.versions == found.environments["here"]
    capsys.readouterr()
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(as_json(found))
    words = ["--environment", "ort-1.24.4", "--time", "0.2", "--sets", "1", "--json", str(two)]
    assert main(["bench", str(model), *words]) == 0
    assert "environment ort-1.24.4" in capsys.readouterr().out
    assert json.loads(two.read_text())["rows"][0]["environment"] == "ort-1.24.4"
    (row,) = ot.compare([one, two]).rows
    assert row.name == "toy.onnx on cpu -> cpu, in ort-1.24.4"
    (row,) = ot.compare([one, two], by="model,environment").rows
    assert row.name == "toy.onnx on cpu, in ort-1.24.4"


def test_verify_runs_the_other_model_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environments.linked(monkeypatch)
    add_environment("onnxruntime==1.24.4")
    model = str(studies.write_model(tmp_path / "toy.onnx", studies.MODEL))
    assert ot.verify(model, model, environment="ort-1.24.4").good
    for words, what in (
        (["--environment", "gone"], "no environment 'gone'"),
        (["--environment", "ort-1.24.4", "--bisect"], "takes models apart here"),
    ):
        assert main(["verify", model, model, *words]) == 2
        assert what in capsys.readouterr().err
