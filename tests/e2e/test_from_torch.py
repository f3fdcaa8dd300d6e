"""From a PyTorch module to a proved plan in one command, and again from its settings file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortune.cli.main import main

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("torch_workers")

MODULE = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.body(x)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_module_is_exported_searched_and_timed_beside(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["optimize", "small_module:Small", "--input", "x=2x8", "--dynamic", "x:0=batch"]
    assert main([*words, "--on", "cpu", "--time", "2s", "-o", "run", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    rows = [one for one in told["trials"] if one["stage"] == "beside"]
    assert rows[0]["plan"].startswith("PyTorch @ torch")
    assert "compile=true" in rows[1]["plan"] and len(rows) == 2
    assert all(row["ratio"] and row["scores"] for row in rows), rows
    assert all(score["value"] > 0.999 for row in rows for score in row["scores"])
    assert told["best"]["key"] not in {one["key"] for one in rows}
    assert sorted(path.name for path in Path("run/export").iterdir()) == [
        "export.json",
        "model.onnx",
        "state.pt",
    ]
    settings = Path("run/ortune.toml").read_text()
    assert 'model = ["small_module:Small"]' in settings
    written = Path("run/export/model.onnx").stat().st_mtime_ns
    assert main(["optimize", "run/ortune.toml", "--json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert {one["key"] for one in again["trials"]} >= {one["key"] for one in rows}
    assert Path("run/export/model.onnx").stat().st_mtime_ns == written, "exported once a run"


def test_options_of_a_module_are_refused_with_a_file(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", "m.onnx", "--input", "x=2x8", "-o", "run"]) == 2
    assert "--input needs a PyTorch module" in capfd.readouterr().err
    assert not Path("run").exists()


def test_a_settings_file_cannot_ask_for_a_pickle(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("s.toml").write_text('model = ["small_module:Small"]\nunsafe_pickle = true\n')
    assert main(["optimize", "s.toml", "-o", "run"]) == 2
    assert "unsafe_pickle" in capfd.readouterr().err
