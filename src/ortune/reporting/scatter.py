"""A scatter plot as inline SVG: no script, colours from the page."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from ortune.core.section import Point, Scatter
from ortune.reporting import canvas
from ortune.reporting.axis import Axis
from ortune.reporting.canvas import BOTTOM, FRAME, LEFT, RIGHT, TOP, along, grid, named


def svg(plot: Scatter) -> str:
    """Draw the plot. Losers far off do not stretch the axes: they are triangles at the edge."""
    x = _axis([(p.x, p.tone) for p in plot.points], LEFT, RIGHT)
    y = _axis([(p.y, p.tone) for p in plot.points], BOTTOM, TOP)
    label = f"{plot.y_label} against {plot.x_label}"
    return canvas.plot(
        label,
        *grid(x, y, plot.x_label, plot.y_label),
        _line(plot, x, y),
        *(_mark(point, index in plot.front, x, y) for index, point in enumerate(plot.points)),
        *_labels(plot, x, y),
    )


def outside(plot: Scatter) -> bool:
    """Whether a point lies beyond the axes."""
    x = _axis([(p.x, p.tone) for p in plot.points], 0, 1)
    y = _axis([(p.y, p.tone) for p in plot.points], 0, 1)
    return any(not (x.holds(p.x) and y.holds(p.y)) for p in plot.points)


def _axis(values: Sequence[tuple[float, str]], start: float, stop: float) -> Axis:
    """Scale to the points that count, and to the losers within one more range of them."""
    kept = [value for value, tone in values if tone != "lose"] or [value for value, _ in values]
    low, high = min(kept), max(kept)
    room = (high - low) or max((abs(value - low) for value, _ in values), default=0.0)
    near = [value for value, _ in values if low - room <= value <= high + room]
    low, high = min(near), max(near)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - pad, high + pad, start, stop)


def _line(plot: Scatter, x: Axis, y: Axis) -> str:
    places = [plot.points[index] for index in plot.front]
    path = " ".join(f"{x.at(p.x):.1f},{y.at(p.y):.1f}" for p in places)
    return f'<polyline class="front" points="{path}"/>' if len(places) > 1 else ""


def _mark(point: Point, front: bool, x: Axis, y: Axis) -> str:
    at_x, at_y = x.at(point.x), y.at(point.y)
    kind = escape(point.tone or ("best" if front else "other"), quote=True)
    tip = f"<title>{escape(point.label)}\n{point.x:.4g}, {point.y:.5g}</title>"
    if x.holds(point.x) and y.holds(point.y):
        size = 7 if point.tone in ("win", "original") else 5
        return f'<circle class="{kind}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{size}">{tip}</circle>'
    shape = f"M{at_x - 6:.1f} {at_y + 5:.1f}h12l-6 -10z"
    return f'<path class="{kind}" d="{shape}">{tip}</path>'


def _labels(plot: Scatter, x: Axis, y: Axis) -> list[str]:
    """Name the winner and the original, then what is on the front, where there is room."""
    dots = [(x.at(p.x), y.at(p.y)) for p in plot.points]
    ends = itertools.pairwise([dots[index] for index in plot.front])
    line = [box for one, two in ends for box in along(one, two)]
    first = [i for i, p in enumerate(plot.points) if p.tone in ("win", "original")]
    order = dict.fromkeys((*first, *plot.front, *range(len(dots))))
    shown = {*first, *plot.front}
    marks = [(*dots[i], plot.points[i].label if i in shown else "") for i in order]
    return named(marks, line, FRAME, len(marks))
