"""PP-OCR's text detector on drawn pages: boxes are found, and int8 keeps them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.accuracy import detector
from benchmarks.accuracy.detector import metrics, ours, records, row, stock

from tests.real.task import missing

PACKAGES = (
    "rapidocr==3.10.0",
    "font-roboto==0.0.1",
    "font-source-serif-pro==0.0.1",
    "pillow",
    "scipy",
)


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing(PACKAGES):
        pytest.skip(reason)
    monkeypatch.setattr(sys, "path", [*sys.path, str(detector.EXAMPLE)])


def test_lines_of_text_are_found_and_pages_are_drawn_alike(tmp_path: Path) -> None:
    pages = detector.drawn(tmp_path / "a", 4, 1)
    again = detector.drawn(tmp_path / "b", 4, 1)
    assert (pages.fed.digests, pages.fed.labels) == (again.fed.digests, again.fed.labels)
    half = metrics()[1]
    assert half.aggregate(records(half, pages.model, pages.fed)) > 0.9


@pytest.mark.long
def test_int8_keeps_the_boxes_within_a_point(tmp_path: Path) -> None:
    pages = detector.drawn(tmp_path, 24, 12)
    base = [records(metric, pages.model, pages.fed) for metric in metrics()]
    (tmp_path / "out").mkdir()
    own = row("ortune", "int8-static", ours(pages, "int8-static", tmp_path / "out"), pages, base)
    assert own["map"] >= metrics()[0].aggregate(base[0]) - detector.ALLOWED
    assert own["bytes"] < 0.4 * pages.model.stat().st_size
    rivals = [row("", name, path, pages, base) for name, path in stock(pages, tmp_path).items()]
    assert all(own["map"] >= one["map"] - 0.005 for one in rivals if "map" in one)
