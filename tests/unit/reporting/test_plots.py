"""Bars and lines: valid SVG of any values, in every writer, and text that stays inside."""

from __future__ import annotations

import io
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console

from ortune.core.section import (
    Bar,
    Bars,
    Block,
    Estimate,
    Heading,
    Intervals,
    Line,
    Lines,
    Point,
    Table,
    Text,
)
from ortune.reporting import canvas, rows
from ortune.reporting.blocks import Part
from ortune.reporting.canvas import Axis, abbreviate_number, make_axis
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


def drawn(chart: Bars) -> list[tuple[float, float]]:
    """Return start and length of every bar in per cent of its cell."""
    root = ElementTree.fromstring(rows.draw_bars(chart))
    found = [e for e in root.iter("line") if e.get("class", "").startswith("bar")]
    ends = [[float(e.get(name, "").rstrip("%")) for name in ("x1", "x2")] for e in found]
    return [(start, stop - start) for start, stop in ends]


def test_bars_start_at_zero_and_their_segments_are_stacked_in_proportion() -> None:
    (a, wide), (b, narrow), (c, other), *_ = drawn(TIMES)
    assert b == pytest.approx(a + wide, abs=0.02) and c == a
    assert wide == pytest.approx(3 * narrow, rel=0.01) and other == pytest.approx(narrow, rel=0.01)


@pytest.mark.parametrize(
    "chart",
    [
        Bars("ms", ()),
        Bars("ms", (Bar("", (0.0,)),)),
        Bars("ms", (Bar("x" * 300, (1e-12,), "n" * 300), Bar("y", (1e12,)))),
    ],
)
def test_any_bars_are_valid_and_inside(chart: Bars) -> None:
    assert "nan" not in rows.draw_bars(chart)
    assert all(x >= 0 and width >= 0 and x + width <= 100 for x, width in drawn(chart))


def circles(chart: Lines) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(canvas.draw_lines(chart))
    return [e for e in root.iter() if e.tag.endswith("circle")]


def test_a_power_law_is_straight_on_logarithmic_axes() -> None:
    points = tuple(Point(10.0**n, 100.0 ** (n + 1), str(n)) for n in range(4))
    found = circles(Lines("x", "y", (), points, log_x=True, log_y=True))
    places = [(float(e.get("cx", "")), float(e.get("cy", ""))) for e in found]
    slopes = {round((b[1] - a[1]) / (b[0] - a[0]), 2) for a, b in itertools.pairwise(places)}
    assert len(slopes) == 1


@pytest.mark.parametrize(
    "chart",
    [
        Lines("x", "y", ()),
        Lines("x", "y", (Line("", ()),)),
        Lines("x", "y", (Line("flat", ((0.0, 0.0), (1.0, 0.0))),)),
        Lines("x", "y", (Line("one", ((1e9, 1e-9),)),), log_x=True, log_y=True),
        Lines("x", "y", (Line("bad", ((1.0, math.nan), (2.0, 1.0))),), log_x=True),
        Lines("x", "y", (Line("zero", ((0.0, 0.0), (2.0, 1.0))),), log_x=True, log_y=True),
        Lines("x", "y", tuple(Line(str(n), ((0.0, n), (1.0, n))) for n in range(15))),
    ],
)
def test_any_lines_are_valid(chart: Lines) -> None:
    drawn = canvas.draw_lines(chart)
    ElementTree.fromstring(drawn)
    assert not re.search(r"\b(nan|inf)\b", drawn)
    html(chart)


def test_marks_take_the_colour_of_their_meaning_and_only_seen_meanings_are_in_the_legend() -> None:
    near, far = circles(ROOF)
    assert near.get("class") == "mark s0" and far.get("class") == "mark s1"
    assert "far from it" in html(ROOF) and "not there" not in html(ROOF)


def test_no_more_marks_are_named_than_asked_but_all_have_tips() -> None:
    points = tuple(Point(float(n), float(n), f"name{n}") for n in range(30))
    root = ElementTree.fromstring(canvas.draw_lines(Lines("x", "y", (), points, named=3)))
    labels = [e for e in root.iter() if e.get("class") == "label"]
    tips = [e for e in root.iter() if e.tag.endswith("title")]
    assert [e.text for e in labels] == ["name0", "name1", "name2"]
    assert len(tips) == 30


@pytest.mark.parametrize("block", [TIMES, ROOF])
def test_names_from_outside_are_escaped(block: Block) -> None:
    assert "<img" not in html(block) and "&lt;img" in html(block)
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


def test_round_ticks() -> None:
    assert Axis(0.0, 10.0, 0, 1).list_ticks() == [0, 2, 4, 6, 8, 10]
    assert Axis(0.5, 2e4, 0, 1, log=True).list_ticks() == [1, 10, 100, 1e3, 1e4]
    assert Axis(0.9, 12.0, 0, 1, log=True).list_ticks() == [1, 2, 5, 10]
    assert len(Axis(1e-9, 1e12, 0, 1, log=True).list_ticks()) <= 9
    assert [abbreviate_number(v) for v in (0.05, 20, 5000, 2.5e6, 1e9, 3e12)] == [
        "0.05",
        "20",
        "5k",
        "2.5M",
        "1G",
        "3T",
    ]
    axis = make_axis([5.0], 0, 1, log=True)
    assert axis.low < 5.0 < axis.high


def estimate(value: float, low: float, high: float, tone: str = "") -> Estimate:
    return Estimate(f"{tone} {value}", value, low, high, "figure", HOSTILE, tone)


def intervals(*rows_: Estimate) -> Intervals:
    return Intervals("plan", "speed-up", rows_, (("win", "the winner"), ("lose", "slower")))


def spans(plot: Intervals) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(rows.draw_intervals(plot))
    found = [e for e in root.iter("line") if e.get("class", "").startswith("span")]
    ends = [[float(e.get(name, "").rstrip("%")) for name in ("x1", "x2")] for e in found]
    return [(start, stop) for start, stop in ends]


def test_intervals_lie_right_and_left_of_the_line_at_one() -> None:
    plot = intervals(estimate(2, 1.5, 2.5, "win"), estimate(1, 1, 1), estimate(0.9, 0.8, 1.1))
    root = ElementTree.fromstring(rows.draw_intervals(plot))
    lines_ = {e.get("x1") for e in root.iter("line") if e.get("class") == "reference"}
    (one,) = (float(str(x).rstrip("%")) for x in lines_)
    (a, b), (c, d) = spans(plot)
    assert one < a < b and c < one < d


@pytest.mark.parametrize(
    "plot",
    [
        intervals(),
        intervals(estimate(1.0, 1.0, 1.0)),
        intervals(estimate(2.0, 0.0, math.inf), estimate(1e-9, 1e-10, 1e-8, "lose")),
        intervals(estimate(math.nan, math.nan, math.nan, "lose")),
        intervals(estimate(math.inf, 1.0, math.inf), estimate(0.0, 0.0, 0.0)),
        intervals(*(estimate(1.0 + n, 0.5 + n, 2.0 + n) for n in range(200))),
    ],
)
def test_any_intervals_are_valid_and_inside(plot: Intervals) -> None:
    drawn_ = rows.draw_intervals(plot)
    ElementTree.fromstring(drawn_)
    assert not re.search(r'="(nan|inf)', drawn_)
    assert all(0 <= a <= b <= 100 for a, b in spans(plot))
    html(plot)


def test_what_is_hopeless_lies_at_the_edge_and_does_not_flatten_the_rest() -> None:
    far = intervals(estimate(2, 1.5, 2.5), estimate(0.001, 0.0009, 0.0011, "lose"))
    (a, b), *_ = spans(far)
    assert b - a > 20 and "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}" in rows.draw_intervals(
        far
    )


def test_what_is_shown_on_demand_opens_without_a_script() -> None:
    table = Table(("a", ""), (("1", "x"),))
    part = Part("p", (Heading("Seen"), Text("one"), Heading("Folded", folded=True), table))
    written_ = render_page("t", (part,))
    before, _, after = written_.partition("<details>")
    assert "Seen" in before and "one" in before
    assert after.index("Folded") < after.index("<table") < after.index("</details>")
    assert 'data-column="a"' in after, "a narrow page repeats the column's name"


def test_plots_are_drawn_for_a_page_and_for_a_phone() -> None:
    found = html(ROOF)
    assert 'class="wide"><svg viewBox="0 0 760' in found
    assert 'class="narrow"><svg viewBox="0 0 344' in found


def test_an_area_stands_on_zero() -> None:
    chart = Lines("x", "y", (Line("a", ((0.0, 2.0), (1.0, 4.0)), filled=True),))
    root = ElementTree.fromstring(canvas.draw_lines(chart))
    (area,) = (e for e in root.iter("polygon"))
    axis = next(e for e in root.iter("path") if e.get("class") == "axis")
    bottom = area.get("points", "").split()[-1].split(",")[1]
    assert f"V{float(bottom):.0f}H" in axis.get("d", "")


def test_in_markdown_words_about_a_plot_go_with_it() -> None:
    table = Table(("a",), (("1",),))
    blocks = (Heading("Plot"), ROOF, Text("its bars"), Heading("Kept"), Text("words"))
    text = render_markdown_parts((Part("p", (*blocks, Heading("Both"), ROOF, table)),))
    assert "Plot" not in text and "its bars" not in text
    assert "## Kept" in text and "words" in text and "## Both" in text
