"""A model that memory cannot hold beside its copy is not run, and that is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.models import write_classifier
from tests.unit.quantizers.calibration.test_reuse import _feeds

from ortune.core.event import Event, Note
from ortune.core.step import Recipe
from ortune.data.feeds import Feeds
from ortune.graph.io import file
from ortune.search.recipe import compare
from ortune.search.recipe.build import build
from ortune.transforms.simplify import Simplify


def test_weights_count_twice(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path, samples=4)
    needed = 2 * file.count_file_bytes(model) + (256 << 20)
    assert compare.describe_memory_lack(model, needed) is None
    said = compare.describe_memory_lack(model, needed - 1)
    assert said is not None and "0.3 GB" in said and "numbers are not compared" in said


@pytest.mark.parametrize(("free", "runs"), [(1 << 40, 2), (1 << 20, 0)])
def test_without_memory_the_numeric_check_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, runs: int
) -> None:
    model, data = write_classifier(tmp_path, samples=4)
    feeds: Feeds = _feeds(model, data, tmp_path / "feeds")
    asked: list[object] = []
    events: list[Event] = []

    def ask(job: object, *what: object) -> list[dict[str, list[list[list[float]]]]]:
        asked.append(job)
        return [{"records": [[[1.0, 0.0, 1.0]]]}]

    monkeypatch.setattr(compare, "ask_once", ask)
    monkeypatch.setattr(compare, "compute_outputs", ask)
    monkeypatch.setattr(compare.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr(compare.Snr, "aggregate", lambda self, rows: 200.0)
    out = tmp_path / "out.onnx"
    build(model, Recipe("r", (Simplify(),)), out, feeds=feeds, sink=events.append)
    said = [event.text for event in events if isinstance(event, Note) and event.warning]
    assert len(asked) == runs and out.is_file()
    assert len(said) == (0 if runs else 1)
