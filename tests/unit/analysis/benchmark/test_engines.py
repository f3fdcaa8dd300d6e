"""Providers that build engines: the process that built and those that did not, told apart."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import ortune as ot
from ortune.cli import bench as bench_verb
from ortune.core.event import Event, Progress

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { y = Relu(x) }
"""


def test_the_first_process_is_cold_and_the_others_are_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = tmp_path / "toy.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    seen: list[Event] = []
    found = ot.bench(path, on="engined,cpu(threads=1)", sets=2, time=0.2, sink=seen.append)
    first, second = found.rows
    assert first["caches"] == ["cold", "warm"] and "caches" not in second
    assert first["load_ns"][0] > max(300e6, first["load_ns"][1])
    assert not (tmp_path / "home" / "ortune" / "engines").exists()
    told = {one.work for one in seen if isinstance(one, Progress)}
    assert told == {"timing", "building an engine for ToyExecutionProvider"}
    monkeypatch.setenv("COLUMNS", "300")
    bench_verb.print_rows(found, wide=True)
    shown = capsys.readouterr().out
    for title in ("session, cold", "session, warm", "first inference, cold", "session  "):
        assert title in shown
