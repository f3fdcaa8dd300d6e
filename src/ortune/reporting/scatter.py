"""A scatter plot as inline SVG: no script, colours from the page."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from ortune.core.section import Point, Scatter
from ortune.reporting.axis import Axis
from ortune.reporting.canvas import WIDE, Canvas, along, grid, named


def svg(plot: Scatter, canvas: Canvas = WIDE) -> str:
    """Draw the plot. Losers far off do not stretch the axes: they are triangles at the edge."""
    x, y = _axes(plot, canvas)
    label = f"{plot.y_label} against {plot.x_label}"
    places = [plot.points[index] for index in plot.front]
    path = " ".join(f"{x.at(p.x):.1f},{y.at(p.y):.1f}" for p in places)
    # Name the winner and the original, then the front and what is asked for, if there is room.
    dots = [(x.at(p.x), y.at(p.y)) for p in plot.points]
    ends = itertools.pairwise([dots[index] for index in plot.front])
    line = [box for one, two in ends for box in along(one, two)]
    first = [i for i, p in enumerate(plot.points) if p.tone in ("win", "original")]
    shown = dict.fromkeys((*first, *plot.front, *plot.named))
    order = dict.fromkeys((*shown, *range(len(dots))))
    marks = [(*dots[i], plot.points[i].label if i in shown else "") for i in order]
    return canvas.plot(
        label,
        *grid(x, y, plot.x_label, plot.y_label, canvas.ticks),
        (f'<polyline class="front" points="{path}"/>' if len(places) > 1 else ""),
        *(_errors(point, x, y) for point in plot.points),
        *(_mark(point, index in plot.front, x, y) for index, point in enumerate(plot.points)),
        *named(marks, line, canvas, len(marks)),
    )


def outside(plot: Scatter) -> bool:
    """Whether a point lies beyond the axes."""
    x, y = _axes(plot, WIDE)
    return any(not (x.holds(p.x) and y.holds(p.y)) for p in plot.points)


def _axes(plot: Scatter, canvas: Canvas) -> tuple[Axis, Axis]:
    x = _axis([(p.x, p.tone) for p in plot.points], canvas.left, canvas.right)
    ys = [(y, p.tone) for p in plot.points for y in (p.y, *(p.y_span or ()))]
    return x, _axis(ys, canvas.bottom, canvas.top)


def _axis(values: Sequence[tuple[float, str]], start: float, stop: float) -> Axis:
    """Scale to the points that count, and to the losers within one more range of them."""
    values = values or [(0.0, "")]  # nothing was measured: the plot is empty
    kept = [value for value, tone in values if tone != "lose"] or [value for value, _ in values]
    low, high = min(kept), max(kept)
    room = (high - low) or max((abs(value - low) for value, _ in values), default=0.0)
    near = [value for value, _ in values if low - room <= value <= high + room]
    low, high = min(near), max(near)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - pad, high + pad, start, stop)


def _errors(point: Point, x: Axis, y: Axis) -> str:
    """Draw the error bars of a point that lies within the axes."""
    if not (x.holds(point.x) and y.holds(point.y)):
        return ""
    path = ""
    if point.x_span:
        path += f"M{x.at(point.x_span[0]):.1f} {y.at(point.y):.1f}H{x.at(point.x_span[1]):.1f}"
    if point.y_span:
        path += f"M{x.at(point.x):.1f} {y.at(point.y_span[0]):.1f}V{y.at(point.y_span[1]):.1f}"
    return f'<path class="error {escape(point.tone, quote=True)}" d="{path}"/>' if path else ""


def _mark(point: Point, front: bool, x: Axis, y: Axis) -> str:
    at_x, at_y = x.at(point.x), y.at(point.y)
    kind = escape(point.tone or ("best" if front else "other"), quote=True)
    tip = f"<title>{escape(point.label)}\n{point.x:.4g}, {point.y:.5g}</title>"
    if x.holds(point.x) and y.holds(point.y):
        size = 7 if point.tone in ("win", "original") else 5
        return f'<circle class="{kind}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{size}">{tip}</circle>'
    shape = f"M{at_x - 6:.1f} {at_y + 5:.1f}h12l-6 -10z"
    return f'<path class="{kind}" d="{shape}">{tip}</path>'
