"""A line chart as inline SVG, linear or logarithmic: no script, colours from the page."""

from __future__ import annotations

import itertools
from dataclasses import replace
from html import escape

from ortune.core.section import Line, Lines, Point
from ortune.reporting.axis import Axis, spanning
from ortune.reporting.canvas import WIDE, Canvas, along, grid, named

COLOURS = 6
"""Classes s0, s1, ... of the page's style; then they come round, in other dashes."""
_OWN = ("win", "lose", "original", "roof")


def svg(chart: Lines, canvas: Canvas = WIDE) -> str:
    """Draw the chart; points that a logarithmic axis cannot hold are left out."""
    xs = [x for line in chart.lines for x, _ in line.points] + [mark.x for mark in chart.marks]
    ys = [y for line in chart.lines for _, y in line.points] + [mark.y for mark in chart.marks]
    x = spanning(xs, canvas.left, canvas.right, log=chart.log_x)
    y = spanning(ys, canvas.bottom, canvas.top, log=chart.log_y)
    if any(line.filled for line in chart.lines):
        y = replace(y, low=0.0)
    label = f"{chart.y_label} against {chart.x_label}"
    drawn = [(line, _places(line, x, y)) for line in chart.lines]
    return canvas.plot(
        label,
        *grid(x, y, chart.x_label, chart.y_label, canvas.ticks),
        *(_area(line, places, line_class(chart, line), y) for line, places in drawn),
        *(_line(line, places, line_class(chart, line)) for line, places in drawn),
        *(_mark(mark, mark_class(chart, mark.tone), x, y) for mark in _shown(chart, x, y)),
        *_names(chart, [places for _, places in drawn], x, y, canvas),
    )


def line_class(chart: Lines, line: Line) -> str:
    """Return a line's class: its tone, or the next colour."""
    if line.tone in _OWN:
        return line.tone
    plain = [one for one in chart.lines if one.tone not in _OWN]
    place = next(index for index, one in enumerate(plain) if one is line)
    return f"s{place % COLOURS}" + (" dashed" if place // COLOURS % 2 else "")


def mark_class(chart: Lines, tone: str) -> str:
    """Return a mark's class: its tone, the colour of its tone in the legend, or the first."""
    if tone in _OWN:
        return tone
    tones = [one for one, _ in chart.legend if one not in _OWN]
    return f"s{tones.index(tone) % COLOURS}" if tone in tones else "s0"


def _places(line: Line, x: Axis, y: Axis) -> list[tuple[float, float]]:
    kept = [(a, b) for a, b in line.points if x.holds(a) and y.holds(b)]
    return [(x.at(a), y.at(b)) for a, b in kept]


def _shown(chart: Lines, x: Axis, y: Axis) -> list[Point]:
    return [mark for mark in chart.marks if x.holds(mark.x) and y.holds(mark.y)]


def _line(line: Line, places: list[tuple[float, float]], kind: str) -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    tip = f"<title>{escape(line.name)}</title>"
    return f'<polyline class="line {kind}" points="{path}">{tip}</polyline>' if places else ""


def _area(line: Line, places: list[tuple[float, float]], kind: str, y: Axis) -> str:
    if not line.filled or not places:
        return ""
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    ends = f"{places[-1][0]:.1f},{y.start:.1f} {places[0][0]:.1f},{y.start:.1f}"
    return f'<polygon class="area {kind}" points="{path} {ends}"/>'


def _mark(mark: Point, kind: str, x: Axis, y: Axis) -> str:
    tip = f"<title>{escape(mark.label)}\n{mark.x:.4g}, {mark.y:.5g}</title>"
    place = f'cx="{x.at(mark.x):.1f}" cy="{y.at(mark.y):.1f}"'
    return f'<circle class="mark {kind}" {place} r="5">{tip}</circle>'


def _names(
    chart: Lines, drawn: list[list[tuple[float, float]]], x: Axis, y: Axis, canvas: Canvas
) -> list[str]:
    ends = [pair for places in drawn for pair in itertools.pairwise(places)]
    lines = [box for one, two in ends for box in along(one, two)]
    marks = [(x.at(mark.x), y.at(mark.y), mark.label) for mark in _shown(chart, x, y)]
    return named(marks, lines, canvas, chart.named)
