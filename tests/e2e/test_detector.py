"""A detector from data to verdict: boxes decoded in the worker, labels of a COCO file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortune.cli.main import main

MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (float[1, 4, 6] x) => (float[1, 4, 6] y) <float factor = {{{factor}}}> {{
    y = Mul(x, factor)
}}
"""
DECODE = """
def decode(outputs, inputs):
    assert inputs["x"].shape == (1, 4, 6)
    rows = outputs["y"][0]
    real = rows[:, 4] > 0
    return rows[real, :4], rows[real, 4], rows[real, 5].round()
"""
PICTURES = 24


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(3)
    (tmp_path / "data").mkdir()
    data = {"images": [], "annotations": [], "categories": [{"id": 5}, {"id": 8}]}
    for at in range(PICTURES):
        count = at % 5  # pictures of other numbers of boxes, and some without
        corner = rng.uniform(0, 50, (4, 2))
        rows = np.hstack([corner, corner + rng.uniform(10, 40, (4, 2)), np.zeros((4, 2))])
        rows[:count, 4] = rng.uniform(0.5, 0.9, count)
        rows[:, 5] = rng.integers(0, 2, 4)
        np.savez(tmp_path / "data" / f"{at:02}.npz", x=rows[None].astype(np.float32))
        data["images"].append({"id": at, "file_name": f"{at:02}.jpg"})
        data["annotations"] += [
            {
                "image_id": at,
                "category_id": (5, 8)[int(row[5])],
                "bbox": [row[0], row[1], row[2] - row[0], row[3] - row[1]],
            }
            for row in rows[:count].tolist()
        ]
    (tmp_path / "boxes.json").write_text(json.dumps(data))
    (tmp_path / "own_boxes.py").write_text(DECODE)
    for name, factor in (("one", 1.0), ("near", 1.001), ("far", 1.4)):
        onnx.save(onnx.parser.parse_model(MODEL.format(factor=factor)), tmp_path / f"{name}.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


BUDGET = "map(decode=own_boxes:decode)>=base-0.01"
GIVEN = ["--data", "data", "--labels", "boxes.json", "--budget", BUDGET]


@pytest.mark.parametrize(("name", "code"), [("near", 0), ("far", 1)])
def test_verify(home: Path, capsys: pytest.CaptureFixture[str], name: str, code: int) -> None:
    assert main(["verify", "one.onnx", f"{name}.onnx", *GIVEN, "--json"]) == code
    told = capsys.readouterr().out
    score = json.loads(told)["scores"][0]
    assert score["metric"] == "map(decode=own_boxes:decode)"
    assert score["base"] == pytest.approx(1)
    assert score["verdict"] == ("undecided" if code == 0 else "fails")


def test_a_search_scores_both_parts_together(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["optimize", "one.onnx", *GIVEN, "-o", "run", "--time", "5s", "--on", "cpu", "--json"]
    assert main(words) == 0
    lines = (home / "run" / "ledger.jsonl").read_text().splitlines()
    scores = [one["scores"][0] for one in map(json.loads, lines) if one.get("scores")]
    assert {one["metric"] for one in scores} == {"map(decode=own_boxes:decode)"}
    assert scores[0]["base"] == pytest.approx(1)
    (home / "own_boxes.py").write_text("raise AssertionError('a report runs no code')")
    monkeypatch.delitem(sys.modules, "own_boxes", raising=False)
    assert main(["report", "run"]) == 0
