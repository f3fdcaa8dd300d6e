"""The figures that a page begins with are the ledger's: both files are read, no code of ours."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.unit.studies import study

from ortune.core.plugins import codec
from ortune.core.trial import Interval
from ortune.reporting.html import report
from ortune.search.experiment.ledger import read_study, write_ending, write_header

TAGS = re.compile(r"<[^>]+>")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def texts(page: str, pattern: str) -> list[str]:
    """Return what stands inside of the tags that a pattern's group takes in."""
    return [unescape(TAGS.sub(" ", found)) for found in re.findall(pattern, page, re.DOTALL)]


def numbers(text: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(text.replace(",", ""))]


def tiles(page: str) -> dict[str, list[float]]:
    """Return the numbers of each tile by the first word of its title."""
    found = texts(page, r'<div class="tile[^>]*>(.*?)</div>')
    return {text.split()[0].strip(":,"): numbers(text) for text in found}


def run(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Write a run as a search does; return its page and the lines of its ledger."""
    made = study(folder)
    root = Path(made.root)
    winner = made.trials[-1]
    assert winner.measurement is not None
    heavier = replace(winner.measurement, peak_rss=123_000_000, load_ns=40_000_000)
    final = replace(winner, measurement=heavier, predicted=Interval(0.52, 0.5, 0.55))
    trials = (*made.trials[:-1], final)
    write_header(root, made.header)
    write_ending(root, made.ending)
    lines = [json.dumps(codec.encode(trial)) for trial in trials]
    (root / "ledger.jsonl").write_text("".join(f"{line}\n" for line in lines))
    page = report(read_study(root), folder / "page.html").read_text(encoding="utf-8")
    return page, [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    return run(tmp_path_factory.mktemp("run"))


def test_tiles_say_what_the_ledger_says(both: tuple[str, list[dict[str, Any]]]) -> None:
    page, trials = both
    first, best = trials[0], trials[-1]
    ratio, blocks = best["ratio"], best["measurement"]["pairs"][0]["blocks"]
    before = median(ns for block in blocks for ns in block["baseline"]["latency_ns"]) / 1e6
    found = tiles(page)
    latency = found["latency"]
    assert latency[0] == round(1 / ratio["value"], 2)
    assert latency[1:3] == pytest.approx([before, before * ratio["value"]], rel=1e-3)
    ends = sorted(round(1 / ratio[end], 2) for end in ("low", "high"))
    assert [abs(x) for x in latency[4:6]] == ends and latency[3] == 99
    score = best["scores"][0]
    assert found["cosine"][:2] == [score["samples"], score["value"]]
    sizes = [trial["size"] / 1e6 for trial in (best, first)]
    peaks = [trial["measurement"]["peak_rss"] / 1e6 for trial in (first, best)]
    assert found["file"] == [round(size, 2) for size in sizes] + peaks
    starts = [
        sum(trial["measurement"][name] for name in ("load_ns", "first_ns")) / 1e6
        for trial in (best, first)
    ]
    assert found["start"][:2] == pytest.approx(starts, rel=1e-3)
    saved = before * (1 - ratio["value"])
    assert found["start"][2] == pytest.approx((starts[0] - starts[1]) / saved, abs=1)


def test_pills_say_what_the_ledger_says(both: tuple[str, list[dict[str, Any]]]) -> None:
    page, trials = both
    (pills,) = re.findall(r'<ul class="pills">(.*?)</ul>', page, re.DOTALL)
    said = texts(pills, r"<li[^>]*>(.*?)</li>")
    assert len(said) == 3
    assert trials[-1]["ratio"]["high"] < 1 and said[0].startswith("faster")
    assert said[1] == f"accuracy {trials[-1]['scores'][0]['verdict']}"


def test_every_plan_of_the_table_and_the_charts_is_in_the_ledger(
    both: tuple[str, list[dict[str, Any]]],
) -> None:
    page, trials = both
    last = {trial["key"]: trial for trial in trials}.values()
    known = sorted(
        (round(1 / trial["ratio"]["value"], 2), (trial["size"] or 0) / 1e6)
        for trial in last
        if trial["ratio"]
    )
    (table,) = re.findall(r'<section id="ranking"[^>]*>(.*?)</section>', page, re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr.*?</tr>", table)]
    cells = [row for row in rows if row and NUMBER.search(row[1])]
    assert sorted((numbers(row[1])[0], numbers(row[4])[0]) for row in cells) == known
    assert len([row for row in rows if len(row) > 1]) == len(last)
    (front,) = re.findall(r'<section id="front"[^>]*>(.*?)</section>', page, re.DOTALL)
    spec = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', front)[0])
    drawn = sorted((round(row["true x"], 2), row["size"]) for row in spec["data"]["values"])
    assert drawn == known
