"""The simplifiers' benchmark: what is examined of a file, and the table from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks.peers.environments import Environment
from benchmarks.rewrites import outputs
from benchmarks.simplifiers.making import count, examined, make
from benchmarks.simplifiers.table import BEGIN, END, fill
from onnx import parser

TEXT = """
<ir_version: 9, opset_import: ["": 20]>
m (float[2,4] x) => (float[2,4] y)
{
  a = Identity(x)
  b = Relu(a)
  y = Identity(b)
}
"""


def row(tool: str, **more: Any) -> dict[str, Any]:
    plain = {"version": "1.0", "nodes": 3, "seconds": 1.5, "peak_rss": 10**9, "error": ""}
    return plain | {"tool": tool, "ratio": None, "note": ""} | more


def test_ortune_runs_in_a_process_of_its_own_and_its_file_is_examined(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    feeds = [{"x": np.arange(8, dtype=np.float32).reshape(2, 4)}]
    none = Environment("simplifiers", "", error="offline")
    made = make("ortune", path, tmp_path / "out.onnx", none, feeds, outputs(path, feeds))
    assert not made.error and made.nodes == 1 and made.peak_rss > 0 and made.snr is None
    wrong = [[array + 1 for array in one] for one in outputs(path, feeds)]
    assert examined(made, tmp_path / "out.onnx", feeds, wrong).error.startswith("other outputs")
    assert make("onnxslim", path, path, none, feeds, []).error == "not installed: offline"


def test_nodes_of_bodies_count(tmp_path: Path) -> None:
    text = """
<ir_version: 9, opset_import: ["": 20]>
m (bool c, float[2] x) => (float[2] y)
{
  y = If(c) <
    then_branch = g1 () => (float[2] t) { t = Relu(x) },
    else_branch = g2 () => (float[2] e) { e = Neg(x) }
  >
}
"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    assert count(tmp_path / "m.onnx") == 3


def test_the_table_is_written_between_its_marks_and_the_section_added_once() -> None:
    ratio = {"value": 0.9, "low": 0.85, "high": 0.95}
    rows = [
        row("ortune", ratio=ratio),
        row("onnxslim", error="does not run: two values"),
        row("onnxsim", note="names clash"),
    ]
    results = {"cases": {"toy": {"nodes": 7, "rows": rows}}, "skipped": {"unet": "no torch"}}
    page = fill("# Rewriting\n\nText.\n", results)
    assert page.startswith("# Rewriting\n\nText.\n") and fill(page, results) == page
    (line,) = [line for line in page.splitlines() if line.startswith("| toy")]
    assert line.split(" | ")[1:] == [
        "7",
        "3, 0.900 [0.850, 0.950]",
        "**does not run: two values**",
        "3, not timed: names clash",
        "- |",
    ]
    assert "| broken files | | 0 | 1 | 0 | 0 |" in page and "unet: no torch" in page
    assert page.count(BEGIN) == page.count(END) == 1
