"""Scatter plots and line charts as inline SVG: no script, colours from the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TypeAlias

from ortune.core.section import Line, Lines, Point, Scatter


@dataclass(frozen=True)
class Axis:
    """A scale; values beyond its ends are drawn at the ends.

    Attributes:
        low: Value at `start`.
        high: Value at `stop`, above `low`.
        start: Place in px.
        stop: Place in px.
        log: Logarithmic; then `low` is above zero.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def position_of(self, value: float) -> float:
        """Return the place of a value in px."""
        inside = self._to_linear(min(max(value, self.low), self.high))
        low, high = self._to_linear(self.low), self._to_linear(self.high)
        return self.start + (inside - low) / (high - low) * (self.stop - self.start)

    def contains(self, value: float) -> bool:
        """Whether a value is drawn at its own place."""
        return self.low <= value <= self.high

    def list_ticks(self, about: int = 6) -> list[float]:
        """Return round values: 1, 2 or 5 times a power of ten apart, or powers on a log axis."""
        wide = self.log and self.high > 5 * self.low
        return self._list_log_ticks(about) if wide else self._list_linear_ticks(about)

    def format_tick(self, value: float) -> str:
        """Write a tick's value."""
        if self.log:
            return abbreviate_number(value)
        digits = max(0, 2 - math.floor(math.log10(self.high - self.low)))
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text

    def _to_linear(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def _list_linear_ticks(self, about: int) -> list[float]:
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _list_log_ticks(self, about: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = math.log10(self.high / self.low)
        units = (1, 2, 5) if decades * 3 <= about + 2 else (1,)
        apart = max(1, math.ceil(decades / (about + 2)))
        candidates = [unit * 10.0**n for n in range(first, last + 1, apart) for unit in units]
        return [value for value in candidates if self.contains(value)]


def make_axis(values: Sequence[float], start: float, stop: float, *, log: bool = False) -> Axis:
    """Return an axis that holds all values, with some room at the ends.

    Values that are not finite, or not above zero on a logarithmic axis, do not count.
    """
    kept = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = min(kept, default=1.0), max(kept, default=1.0)
    if log:
        room = (high / low) ** 0.06 if high > low else 2.0
        return Axis(low / room, high * room, start, stop, log=True)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - pad, high + pad, start, stop)


def abbreviate_number(value: float) -> str:
    """Write a value with a letter for thousands: ``0.05``, ``20``, ``5k``, ``2M``, ``1G``."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10.0**power:
            return f"{value / 10.0**power:.4g}{letter}"
    return f"{value:.4g}"


CHARACTER, LINE = 6.3, 14
"""Rough extent of a letter in px at the label's font size."""
_LONGEST = 44

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in px."""


@dataclass(frozen=True)
class Canvas:
    """The extent of a plot, and where its axes end, px."""

    width: int
    height: int
    x_start: int = 64

    @property
    def x_end(self) -> int:
        """End of the x axis."""
        return self.width - 24

    @property
    def y_end(self) -> int:
        """End of the y axis."""
        return 34

    @property
    def y_start(self) -> int:
        """Start of the y axis."""
        return self.height - 46

    @property
    def frame(self) -> Box:
        """What names stay inside of."""
        return (self.x_start, self.y_end - 12, self.width, self.y_start)

    @property
    def ticks(self) -> int:
        """About how many ticks the x axis has."""
        return max(4, self.width // 120)

    def make_svg(self, label: str, *parts: str) -> str:
        """Return a plot with axes; `label` tells those who do not see it."""
        name = escape(label, quote=True)
        size = f'viewBox="0 0 {self.width} {self.height}"'
        return "\n".join([f'<svg {size} role="img" aria-label="{name}">', *parts, "</svg>"])


WIDE, NARROW = Canvas(760, 400), Canvas(344, 300, x_start=60)
"""For a page, and for a phone: the same letters on both."""


def draw_text(x: float, y: float, words: str, kind: str) -> str:
    """Write escaped text at a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def draw_grid(x: Axis, y: Axis, x_label: str, y_label: str, ticks: int = 6) -> list[str]:
    """Draw grid lines, ticks, both axes and their titles. `y` runs upwards."""
    x_start, x_end, y_end, y_start = x.start, x.stop, y.stop, y.start
    parts = []
    for value in x.list_ticks(ticks):
        at = x.position_of(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {y_end}V{y_start}"/>')
        parts.append(draw_text(at, y_start + 18, x.format_tick(value), "tick middle"))
    for value in y.list_ticks():
        at = y.position_of(value)
        parts.append(f'<path class="grid" d="M{x_start} {at:.1f}H{x_end}"/>')
        parts.append(draw_text(x_start - 8, at + 4, y.format_tick(value), "tick end"))
    parts.append(f'<path class="axis" d="M{x_start} {y_end}V{y_start}H{x_end}"/>')
    parts.append(draw_text((x_start + x_end) / 2, y_start + 40, x_label, "title middle"))
    parts.append(draw_text(8, 16, truncate_label(y_label, int(x_end / 7)), "title"))
    return parts


def list_line_boxes(start: tuple[float, float], end: tuple[float, float]) -> list[Box]:
    """Return small boxes on a straight line, so that no name is crossed out by it."""
    count = max(1, int(math.dist(start, end) / 8))
    shares = [step / count for step in range(1, count)]
    places = [
        (start[0] + s * (end[0] - start[0]), start[1] + s * (end[1] - start[1])) for s in shares
    ]
    return [(x - 1.0, y - 1.0, x + 1.0, y + 1.0) for x, y in places]


def list_label_boxes(x: float, y: float, width: float) -> list[Box]:
    """Return places for a name around a point, the best first."""
    sides = (x + 11, x - 11 - width)
    places = [(side, y) for side in sides]
    for step in (17, 30, 43):
        places += [
            (left_edge, y + d) for d in (-step, step) for left_edge in (*sides, x - width / 2)
        ]
    return [
        (left_edge, mid - LINE / 2, left_edge + width, mid + LINE / 2) for left_edge, mid in places
    ]


def find_free_box(places: Sequence[Box], occupied: Sequence[Box], frame: Box) -> Box | None:
    """Return the first place inside the frame that overlaps nothing taken."""
    for box in places:
        left_edge, top_edge, right_edge, bottom_edge = box
        inside = (
            left_edge > frame[0]
            and top_edge > frame[1]
            and right_edge < frame[2]
            and bottom_edge < frame[3]
        )
        if inside and not any(_boxes_overlap(box, other) for other in occupied):
            return box
    return None


def draw_labels(
    marks: Sequence[tuple[float, float, str]], lines: Sequence[Box], canvas: Canvas, most: int
) -> list[str]:
    """Name marks in their order where there is room, each name once, off the lines if possible.

    Args:
        marks: Place in px and name; one without a name only takes its room.
        lines: Boxes along the lines.
    """
    occupied = [(x - 7.0, y - 7.0, x + 7.0, y + 7.0) for x, y, _ in marks]
    parts: list[str] = []
    written = {""}
    frame, longest = canvas.frame, min(_LONGEST, canvas.width // 14)
    for x, y, label in marks:
        name = truncate_label(label.splitlines()[0] if label else "", longest)
        if name in written or len(parts) == most:
            continue
        places = list_label_boxes(x, y, len(name) * CHARACTER)
        box = find_free_box(places, [*occupied, *lines], frame) or find_free_box(
            places, occupied, frame
        )
        if box is not None:
            occupied.append(box)
            written.add(name)
            parts.append(draw_text(box[0], box[1] + LINE / 2 + 4, name, "label"))
    return parts


def truncate_label(words: str, longest: int = _LONGEST) -> str:
    """Cut a label to a length."""
    return words if len(words) <= longest else words[: longest - 1] + "…"


def _boxes_overlap(first: Box, second: Box) -> bool:
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )


def draw_scatter(plot: Scatter, canvas: Canvas = WIDE) -> str:
    """Draw the plot. Losers far off do not stretch the axes: they are triangles at the edge."""
    x, y = _fit_axes(plot, canvas)
    label = f"{plot.y_label} against {plot.x_label}"
    places = [plot.points[index] for index in plot.front]
    path = " ".join(f"{x.position_of(p.x):.1f},{y.position_of(p.y):.1f}" for p in places)
    # Name the winner and the original, then the front and what is asked for, if there is room.
    dots = [(x.position_of(p.x), y.position_of(p.y)) for p in plot.points]
    ends = itertools.pairwise([dots[index] for index in plot.front])
    line = [box for start, end in ends for box in list_line_boxes(start, end)]
    first = [i for i, p in enumerate(plot.points) if p.tone in ("win", "original")]
    shown = dict.fromkeys((*first, *plot.front, *plot.named))
    order = dict.fromkeys((*shown, *range(len(dots))))
    marks = [(*dots[i], plot.points[i].label if i in shown else "") for i in order]
    return canvas.make_svg(
        label,
        *draw_grid(x, y, plot.x_label, plot.y_label, canvas.ticks),
        (f'<polyline class="front" points="{path}"/>' if len(places) > 1 else ""),
        *(_draw_error_bars(point, x, y) for point in plot.points),
        *(
            _draw_scatter_mark(point, index in plot.front, x, y)
            for index, point in enumerate(plot.points)
        ),
        *draw_labels(marks, line, canvas, len(marks)),
    )


def has_outliers(plot: Scatter) -> bool:
    """Whether a point lies beyond the axes."""
    x, y = _fit_axes(plot, WIDE)
    return any(not (x.contains(p.x) and y.contains(p.y)) for p in plot.points)


def _fit_axes(plot: Scatter, canvas: Canvas) -> tuple[Axis, Axis]:
    x = _fit_axis([(p.x, p.tone) for p in plot.points], canvas.x_start, canvas.x_end)
    ys = [(y, p.tone) for p in plot.points for y in (p.y, *(p.y_span or ()))]
    return x, _fit_axis(ys, canvas.y_start, canvas.y_end)


def _fit_axis(values: Sequence[tuple[float, str]], start: float, stop: float) -> Axis:
    """Scale to the points that count, and to the losers within one more range of them."""
    values = values or [(0.0, "")]  # nothing was measured: the plot is empty
    kept = [value for value, tone in values if tone != "lose"] or [value for value, _ in values]
    low, high = min(kept), max(kept)
    room = (high - low) or max((abs(value - low) for value, _ in values), default=0.0)
    near = [value for value, _ in values if low - room <= value <= high + room]
    low, high = min(near), max(near)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - pad, high + pad, start, stop)


def _draw_error_bars(point: Point, x: Axis, y: Axis) -> str:
    """Draw the error bars of a point that lies within the axes."""
    if not (x.contains(point.x) and y.contains(point.y)):
        return ""
    path = ""
    if point.x_span:
        path += (
            f"M{x.position_of(point.x_span[0]):.1f} "
            f"{y.position_of(point.y):.1f}H{x.position_of(point.x_span[1]):.1f}"
        )
    if point.y_span:
        path += (
            f"M{x.position_of(point.x):.1f} "
            f"{y.position_of(point.y_span[0]):.1f}V{y.position_of(point.y_span[1]):.1f}"
        )
    return f'<path class="error {escape(point.tone, quote=True)}" d="{path}"/>' if path else ""


def _draw_scatter_mark(point: Point, front: bool, x: Axis, y: Axis) -> str:
    at_x, at_y = x.position_of(point.x), y.position_of(point.y)
    kind = escape(point.tone or ("best" if front else "other"), quote=True)
    tip = f"<title>{escape(point.label)}\n{point.x:.4g}, {point.y:.5g}</title>"
    if x.contains(point.x) and y.contains(point.y):
        size = 7 if point.tone in ("win", "original") else 5
        return f'<circle class="{kind}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{size}">{tip}</circle>'
    shape = f"M{at_x - 6:.1f} {at_y + 5:.1f}h12l-6 -10z"
    return f'<path class="{kind}" d="{shape}">{tip}</path>'


COLOURS = 6
"""Classes s0, s1, ... of the page's style; then they come round, in other dashes."""
_OWN = ("win", "lose", "original", "roof")


def draw_lines(chart: Lines, canvas: Canvas = WIDE) -> str:
    """Draw the chart; points that a logarithmic axis cannot hold are left out."""
    xs = [x for line in chart.lines for x, _ in line.points] + [mark.x for mark in chart.marks]
    ys = [y for line in chart.lines for _, y in line.points] + [mark.y for mark in chart.marks]
    x = make_axis(xs, canvas.x_start, canvas.x_end, log=chart.log_x)
    y = make_axis(ys, canvas.y_start, canvas.y_end, log=chart.log_y)
    if any(line.filled for line in chart.lines):
        y = replace(y, low=0.0)
    label = f"{chart.y_label} against {chart.x_label}"
    drawn = [
        (
            line,
            [
                (x.position_of(a), y.position_of(b))
                for a, b in line.points
                if x.contains(a) and y.contains(b)
            ],
        )
        for line in chart.lines
    ]
    shown = [mark for mark in chart.marks if x.contains(mark.x) and y.contains(mark.y)]
    ends = [pair for _, places in drawn for pair in itertools.pairwise(places)]
    boxes = [box for start, end in ends for box in list_line_boxes(start, end)]
    named_marks = [(x.position_of(mark.x), y.position_of(mark.y), mark.label) for mark in shown]
    return canvas.make_svg(
        label,
        *draw_grid(x, y, chart.x_label, chart.y_label, canvas.ticks),
        *(_draw_area(line, places, line_class(chart, line), y) for line, places in drawn),
        *(_draw_line(line, places, line_class(chart, line)) for line, places in drawn),
        *(_draw_mark(mark, mark_class(chart, mark.tone), x, y) for mark in shown),
        *draw_labels(named_marks, boxes, canvas, chart.named),
    )


def line_class(chart: Lines, line: Line) -> str:
    """Return a line's class: its tone, or the next colour."""
    if line.tone in _OWN:
        return line.tone
    plain = [other for other in chart.lines if other.tone not in _OWN]
    place = next(index for index, other in enumerate(plain) if other is line)
    return f"s{place % COLOURS}" + (" dashed" if place // COLOURS % 2 else "")


def mark_class(chart: Lines, tone: str) -> str:
    """Return a mark's class: its tone, the colour of its tone in the legend, or the first."""
    if tone in _OWN:
        return tone
    tones = [name for name, _ in chart.legend if name not in _OWN]
    return f"s{tones.index(tone) % COLOURS}" if tone in tones else "s0"


def _draw_line(line: Line, places: list[tuple[float, float]], kind: str) -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    tip = f"<title>{escape(line.name)}</title>"
    return f'<polyline class="line {kind}" points="{path}">{tip}</polyline>' if places else ""


def _draw_area(line: Line, places: list[tuple[float, float]], kind: str, y: Axis) -> str:
    if not line.filled or not places:
        return ""
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    ends = f"{places[-1][0]:.1f},{y.start:.1f} {places[0][0]:.1f},{y.start:.1f}"
    return f'<polygon class="area {kind}" points="{path} {ends}"/>'


def _draw_mark(mark: Point, kind: str, x: Axis, y: Axis) -> str:
    tip = f"<title>{escape(mark.label)}\n{mark.x:.4g}, {mark.y:.5g}</title>"
    place = f'cx="{x.position_of(mark.x):.1f}" cy="{y.position_of(mark.y):.1f}"'
    return f'<circle class="mark {kind}" {place} r="5">{tip}</circle>'
