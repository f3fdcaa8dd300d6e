"""A goal sought on real servers: short, on a toy, so that only what it writes can be judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.cli.main import main

pytest.importorskip("uvicorn")
pytest.importorskip("grpc")


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_choice_is_made_confirmed_and_written(tmp_path: Path, protocol: str) -> None:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    out, told = tmp_path / "tuned.ortune", tmp_path / "told.json"
    words = ["loadtest", str(bundle), "--goal", "p90<=50ms", "--rate", "100", "--time", "150s"]
    words += ["--protocol", protocol, "-o", str(out), "--json", str(told)]
    assert main(words) == 0
    found = json.loads(told.read_text())
    assert found["out"] == str(out) and found["pairs"] >= 3
    assert found["ratio"]["low"] <= found["ratio"]["value"] <= found["ratio"]["high"]
    assert found["better"] == (found["ratio"]["low"] > 1)
    with load_engine(out) as engine:
        assert engine.signature.inputs[0].name == "x"
