"""Charts: specifications that draw any values, escaped in every writer, colours by meaning."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ortune.core.errors import BadSettings
from ortune.core.section import (
    Bar,
    Bars,
    Block,
    Estimate,
    Heading,
    Intervals,
    Limit,
    Line,
    Lines,
    Plot,
    Point,
    Scatter,
    Table,
    Text,
)
from ortune.reporting.blocks import Part
from ortune.reporting.charts.draw import draw_chart, render_svg, write_plot
from ortune.reporting.charts.style import encode_tones
from ortune.reporting.html import render_page
from ortune.reporting.markdown import render_markdown_parts
from ortune.reporting.terminal import make_renderables

HOSTILE = "<img src=x onerror=alert(1)> \"q\" 'a' & | `tick` [bold]x[/bold]"
TIMES = Bars(
    "ms a run",
    (Bar("Conv", (3.0, 1.0), "4 ms"), Bar("MatMul", (1.0, 0.0), "1 ms"), Bar(HOSTILE, (0.0, 0.5))),
    ("at the roof", "above it"),
)
ROOF = Lines(
    "operations a byte",
    "operations a second",
    (Line("roof", ((0.1, 1e9), (10.0, 1e11), (1e3, 1e11)), "roof"), Line("b", ((0.1, 1e8),))),
    (Point(1.0, 5e9, "conv", "near"), Point(1.1, 5e9, HOSTILE, "far")),
    log_x=True,
    log_y=True,
    legend=(("near", "near the roof"), ("far", "far from it"), ("none", "not there")),
)


def html(block: Block) -> str:
    return render_page("t", (Part("p", (block,)),))


def shown(block: Block, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for item in make_renderables((Part("p", (block,)),)):
        console.print(item)
    return out.getvalue().splitlines()


def estimate(value: float, low: float, high: float, tone: str = "") -> Estimate:
    return Estimate(f"{tone} {value}", value, low, high, "figure", HOSTILE, tone)


def intervals(*rows: Estimate) -> Intervals:
    return Intervals("plan", "speed-up", rows, (("win", "the winner"), ("lose", "slower")))


def scatter(*points: tuple[float, float, str], front: tuple[int, ...] = ()) -> Scatter:
    made = tuple(Point(x, y, f"<{index}>", tone) for index, (x, y, tone) in enumerate(points))
    return Scatter("x & x", "<y>", made, front, limit=Limit(0.5, HOSTILE, True))


ANY = [
    Bars("ms", ()),
    Bars("ms", (Bar("", (0.0,)),)),
    Bars("ms", (Bar("x" * 300, (1e-12,), "n" * 300), Bar("y", (1e12,)))),
    TIMES,
    replace(TIMES, stacked=False),
    ROOF,
    Lines("x", "y", ()),
    Lines("x", "y", (Line("", ()),)),
    Lines("x", "y", (Line("one", ((1e9, 1e-9),)),), log_x=True, log_y=True),
    Lines("x", "y", (Line("bad", ((1.0, math.nan), (2.0, 1.0))),), log_x=True),
    Lines("x", "y", (Line("zero", ((0.0, 0.0), (2.0, 1.0)), filled=True),), log_x=True),
    Lines("x", "y", tuple(Line(str(n), ((0.0, n), (1.0, n))) for n in range(15))),
    Lines("x", "y", (Line(HOSTILE, ((1.0, 1.0), (2.0, 1.0))),), ends=True, log_y=True),
    intervals(),
    intervals(estimate(2.0, 0.0, math.inf), estimate(1e-9, 1e-10, 1e-8, "lose")),
    intervals(estimate(math.nan, math.nan, math.nan, "lose")),
    intervals(estimate(math.inf, 1.0, math.inf), estimate(0.0, 0.0, 0.0)),
    intervals(*(estimate(1.0 + n, 0.5 + n, 2.0 + n) for n in range(200))),
    scatter(),
    scatter((1.0, 1.0, "original")),
    scatter((1.0, 1.0, "original"), (1.0, 1.0, "win"), front=(0, 1)),
    scatter((1e-9, -1e9, ""), (3e-9, 1e9, ""), (math.nan, 1.0, "open"), front=(0,)),
    replace(scatter((1.0, 1.0, "lose"), (2.0, 2.0, "lose")), log_x=True),
]


@pytest.mark.parametrize("plot", ANY)
def test_any_values_are_drawn(plot: Plot) -> None:
    json.dumps(draw_chart(plot), allow_nan=False)
    drawn = render_svg(plot)
    ElementTree.fromstring(drawn)
    assert "NaN" not in drawn and "var(--" not in drawn
    html(plot)


def values(spec: dict[str, Any], *, layer: int | None = None) -> list[dict[str, Any]]:
    data = spec["data"] if layer is None else spec["layer"][layer]["data"]
    found: list[dict[str, Any]] = data["values"]
    return found


def test_bars_hold_their_segments_in_order() -> None:
    rows = values(draw_chart(TIMES))
    assert [row["value"] for row in rows] == [3.0, 1.0, 1.0, 0.0, 0.0, 0.5]
    assert [row["segment"] for row in rows[:2]] == ["at the roof", "above it"]


def test_marks_take_the_colour_of_their_meaning_and_only_seen_meanings_are_in_the_legend() -> None:
    key = encode_tones(ROOF.legend, ["far", "near"])
    assert key["scale"] == {"domain": ["near", "far"], "range": ["var(--s0)", "var(--s1)"]}
    assert "far from it" in html(ROOF) and "not there" not in html(ROOF)


@pytest.mark.parametrize("log", [False, True])
def test_names_at_the_ends_of_lines_do_not_lie_on_each_other(log: bool) -> None:
    lines = tuple(Line(f"line{n}", ((1.0, 1.0), (9.0, last))) for n, last in enumerate((7, 7, 1)))
    drawn = draw_chart(Lines("x", "y", lines, log_y=log, ends=True))
    labels = {row["name"]: row for row in values(drawn, layer=-1)}
    assert {row["x"] for row in labels.values()} == {9.0}
    assert labels["line2"]["y"] == 1 and labels["line0"]["y"] == pytest.approx(7)
    assert labels["line1"]["y"] > 7.2, "moved off the one that ends as high"


def test_no_more_marks_are_named_than_asked() -> None:
    points = tuple(Point(float(n), float(n), f"name{n}") for n in range(30))
    drawn = draw_chart(Lines("x", "y", (), points, named=3))
    marks = values(drawn, layer=1)
    assert [row["name"] for row in marks if row["name"]] == ["name0", "name1", "name2"]
    assert len(marks) == 30


@pytest.mark.parametrize(
    ("plot", "axis"),
    [
        (scatter((1.0, 0.9, "original"), (0.5, 0.899, "win"), (0.4, 1e-3, "lose")), "y"),
        (intervals(estimate(2, 1.5, 2.5), estimate(1e-3, 9e-4, 1.1e-3, "lose")), "value"),
    ],
)
def test_what_is_hopeless_lies_at_the_edge_and_does_not_flatten_the_rest(
    plot: Plot, axis: str
) -> None:
    if isinstance(plot, Scatter):
        plot = replace(plot, limit=None)
    rows = values(draw_chart(plot))
    lost = next(row for row in rows if row["tone"] == "lose")
    assert lost[axis] > 0.5, "at the axis' end"
    assert lost["inside"] is False if axis == "y" else lost["left"] == lost["value"]


def test_intervals_are_cut_at_the_ends_of_the_axis_with_an_arrow() -> None:
    wide, narrow = values(
        draw_chart(intervals(estimate(2, 0.1, 9.0, "lose"), estimate(1.5, 1.4, 1.6)))
    )
    assert wide["low"] == wide["left"] > 0.1 and wide["high"] == wide["right"] < 9.0
    assert (narrow["low"], narrow["high"], narrow["left"]) == (1.4, 1.6, None)


def test_a_scripts_page_runs_no_script_but_its_own() -> None:
    page = html(ROOF)
    policy = re.search(r"script-src ([^\"]+)", page)
    assert policy and "unsafe" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts
    ]
    assert policy[1].split() == [f"'sha256-{one}'" for one in hashes] and len(hashes) == 4
    assert len(page.encode()) < 1_000_000


def test_a_static_page_has_pictures_and_no_script() -> None:
    page = render_page("t", (Part("p", (ROOF,)),), static=True)
    assert "<script" not in page and 'src="data:image/svg+xml;base64,' in page


def test_without_the_extra_a_static_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = render_page("t", (Part("p", (TIMES,)),), static=True)
    assert "vl-convert-python, which is not installed" in page and "<td" in page
    with pytest.raises(BadSettings, match="not installed"):
        write_plot(ROOF, Path("roof.svg"))


@pytest.mark.parametrize("name", ["roof.svg", "roof.png"])
def test_a_plot_is_written_by_the_end_of_its_name(name: str, tmp_path: Path) -> None:
    data = write_plot(ROOF, tmp_path / name).read_bytes()
    assert data.startswith(b"<svg" if name.endswith("svg") else b"\x89PNG")


@pytest.mark.parametrize("block", [TIMES, ROOF])
def test_names_from_outside_are_escaped(block: Block) -> None:
    assert "<img" not in html(block) and r"\u003cimg" in html(block)
    assert "<img" not in render_markdown_parts((Part("p", (block,)),)).replace("\\<img", "")


@pytest.mark.parametrize("width", [30, 40, 80, 160])
def test_bars_on_a_terminal_keep_its_width_and_proportion(width: int) -> None:
    found = shown(TIMES, width)
    assert all(cell_len(line) <= width for line in found)
    conv, matmul, *_ = [sum(map(line.count, "█▒")) for line in found if set(line) & set("█▒")]
    assert conv >= 3 * matmul
    assert "at the roof" in " ".join(found)
    assert HOSTILE.split() == [word for word in " ".join(found).split() if word in HOSTILE.split()]


def test_bars_become_a_table_in_markdown() -> None:
    text = render_markdown_parts((Part("p", (TIMES,)),))
    assert text.splitlines()[2].split(" | ")[1:] == ["3", "1", "4 ms |"]


def test_what_is_shown_on_demand_opens_without_a_script() -> None:
    table = Table(("a", ""), (("1", "x"),))
    part = Part("p", (Heading("Seen"), Text("one"), Heading("Folded", folded=True), table))
    written_ = render_page("t", (part,))
    before, _, after = written_.partition("<details>")
    assert "Seen" in before and "one" in before
    assert after.index("Folded") < after.index("<table") < after.index("</details>")
    assert 'data-column="a"' in after, "a narrow page repeats the column's name"


def test_in_markdown_words_about_a_plot_go_with_it() -> None:
    table = Table(("a",), (("1",),))
    blocks = (Heading("Plot"), ROOF, Text("its bars"), Heading("Kept"), Text("words"))
    text = render_markdown_parts((Part("p", (*blocks, Heading("Both"), ROOF, table)),))
    assert "Plot" not in text and "its bars" not in text
    assert "## Kept" in text and "words" in text and "## Both" in text


def test_names_do_not_lie_on_each_other_and_the_winner_has_its_own() -> None:
    points = tuple(Point(x, 1.0, f"p{k}") for k, x in enumerate((1.0, 1.05, 1.5, 2.0)))
    winner = Point(1.06, 1.0, "best", "win")
    plot = Scatter("x", "y", (*points, Point(1.5, 3.0, "far"), winner), named=(0, 1, 2, 3, 4))
    rows = draw_chart(plot)["data"]["values"]
    assert [row["name"] for row in rows] == ["", "", "p2", "p3", "far", "best"]
