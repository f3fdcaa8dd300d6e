"""A scatter plot as inline SVG: no script, colours from the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from ortune.core.section import Point, Scatter

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 34, 46
_CHARACTER, _LINE = 6.3, 14
"""Rough extent of a letter in px at the label's font size."""
_LONGEST = 44


Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in px."""


@dataclass(frozen=True)
class Axis:
    """A linear scale; values beyond its ends are drawn at the ends."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        """Return the place of a value in px."""
        inside = min(max(value, self.low), self.high)
        return self.start + (inside - self.low) / (self.high - self.low) * (self.stop - self.start)

    def holds(self, value: float) -> bool:
        """Whether a value is drawn at its own place."""
        return self.low <= value <= self.high

    def ticks(self, about: int = 6) -> list[float]:
        """Return round values, spaced 1, 2 or 5 times a power of ten."""
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def svg(plot: Scatter) -> str:
    """Draw the plot. Losers far off do not stretch the axes: they are triangles at the edge."""
    x = _axis([(p.x, p.tone) for p in plot.points], _LEFT, _WIDTH - _RIGHT)
    y = _axis([(p.y, p.tone) for p in plot.points], _HEIGHT - _BOTTOM, _TOP)
    label = escape(f"{plot.y_label} against {plot.x_label}")
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">',
        *_grid(plot, x, y),
        _line(plot, x, y),
        *(_mark(point, index in plot.front, x, y) for index, point in enumerate(plot.points)),
        *_labels(plot, x, y),
        "</svg>",
    ]
    return "\n".join(parts)


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


def _grid(plot: Scatter, x: Axis, y: Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
        parts.append(_text(at, bottom + 18, _tick(value, x), "tick middle"))
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(_text(_LEFT - 8, at + 4, _tick(value, y), "tick end"))
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 6, plot.x_label, "title middle"))
    parts.append(_text(8, 16, plot.y_label, "title"))
    return parts


def _tick(value: float, axis: Axis) -> str:
    digits = max(0, 2 - math.floor(math.log10(axis.high - axis.low)))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


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
    """Name what is on the front, the winner and the original, where there is room."""
    dots = [(x.at(p.x), y.at(p.y)) for p in plot.points]
    taken = [(a - 7.0, b - 7.0, a + 7.0, b + 7.0) for a, b in dots]
    ends = itertools.pairwise([dots[index] for index in plot.front])
    line = [box for one, two in ends for box in _along(one, two)]
    named = [i for i, p in enumerate(plot.points) if p.tone in ("win", "original")]
    named += [i for i in plot.front if i not in named]
    parts = []
    for index in named:
        text = _short(plot.points[index].label)
        spots = _spots(*dots[index], len(text) * _CHARACTER)
        box = _free(spots, [*taken, *line]) or _free(spots, taken)
        if box is not None:
            taken.append(box)
            parts.append(_text(box[0], box[1] + _LINE / 2 + 4, text, "label"))
    return parts


def _along(one: tuple[float, float], two: tuple[float, float]) -> list[Box]:
    """Return small boxes on a stretch of the front, so that no name is crossed out."""
    count = max(1, int(math.dist(one, two) / 8))
    shares = [step / count for step in range(1, count)]
    places = [(one[0] + s * (two[0] - one[0]), one[1] + s * (two[1] - one[1])) for s in shares]
    return [(x - 1.0, y - 1.0, x + 1.0, y + 1.0) for x, y in places]


def _spots(x: float, y: float, width: float) -> list[Box]:
    """Return places for a name around a point, the best first."""
    sides = (x + 11, x - 11 - width)
    places = [(side, y) for side in sides]
    for step in (17, 30, 43):
        places += [(left, y + d) for d in (-step, step) for left in (*sides, x - width / 2)]
    return [(left, mid - _LINE / 2, left + width, mid + _LINE / 2) for left, mid in places]


def _free(spots: Sequence[Box], taken: Sequence[Box]) -> Box | None:
    free = (box for box in spots if _fits(box) and not any(_overlap(box, t) for t in taken))
    return next(free, None)


def _fits(box: Box) -> bool:
    left, top, right, bottom = box
    return left > _LEFT and right < _WIDTH and top > _TOP - 12 and bottom < _HEIGHT - _BOTTOM


def _overlap(one: Box, two: Box) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
