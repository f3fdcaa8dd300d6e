"""Bars and intervals as table rows with a drawn cell: labels wrap, the drawing stretches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from ortune.core.section import Bar, Bars, Estimate, Intervals
from ortune.reporting.canvas import Axis, make_axis

_ENDS = (2.0, 98.0)
"""Where an axis ends, % of the cell's width."""
_ARROWS = (
    "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
)
_OPEN = 100.0
"""Intervals of which one end is so many times the other are not drawn: they tell nothing."""


def draw_bars(chart: Bars) -> str:
    """Draw bars from zero, each with its label to the left and its note to the right."""
    longest = max((_compute_bar_length(chart, bar) for bar in chart.bars), default=0.0) or 1.0
    x = Axis(0.0, longest, 0.0, _ENDS[1])
    rows = [
        _render_row(
            bar.label, _draw_cell(x, _draw_segments(chart, bar, x)), bar.note, "", bar.tone
        )
        for bar in chart.bars
    ]
    return _render_table("", chart.unit, _draw_scale(x), rows)


def draw_intervals(plot: Intervals) -> str:
    """Draw estimates with their intervals on one logarithmic axis."""
    # Span what counts; what lost is drawn at the edge where it lies far from that.
    kept = [estimate for estimate in plot.rows if estimate.tone != "lose"] or plot.rows
    ends = [plot.reference, *(estimate.value for estimate in kept)]
    for estimate in kept:
        ends += [estimate.low, estimate.high] if _is_bounded(estimate) else []
    low, high = min(_keep_positive(ends)), max(_keep_positive(ends))
    room = max(high / low, 1.5)
    near = [
        estimate.value for estimate in plot.rows if low / room <= estimate.value <= high * room
    ]
    x = make_axis([low, high, *near], *_ENDS, log=True)
    at = f"{x.position_of(plot.reference):.2f}%"
    line = f'<line class="reference" x1="{at}" x2="{at}" y1="0" y2="100%"/>'
    rows = [
        _render_row(
            estimate.label,
            _draw_cell(x, [line, *_draw_estimate(estimate, x)]),
            estimate.figure,
            estimate.note,
            estimate.tone,
        )
        for estimate in plot.rows
    ]
    return _render_table(plot.title, plot.unit, _draw_scale(x, "x"), rows)


def segment_class(chart: Bars, index: int, tone: str = "") -> str:
    """Return a segment's class: the bar's tone where there is one segment, else its colour."""
    return tone if tone and len(chart.segments) == 1 else f"s{index % 6}"


def draw_legend_mark(tone: str) -> str:
    """Return the mark of a tone in the middle of a drawing, as in the rows."""
    return _draw_mark(tone, "50%")


def _compute_bar_length(chart: Bars, bar: Bar) -> float:
    return sum(bar.parts) if chart.stacked else max(bar.parts, default=0.0)


def _draw_segments(chart: Bars, bar: Bar, x: Axis) -> Iterator[str]:
    so_far, beside = 0.0, len(bar.parts) > 1 and not chart.stacked
    for index, (name, part) in enumerate(zip(chart.segments, bar.parts, strict=True)):
        about = f"{bar.label}\n{name + ': ' if name else ''}{part:.4g} {chart.unit}\n{bar.note}"
        kind = escape(segment_class(chart, index, bar.tone), quote=True)
        place = f' transform="translate(0 {8 * index - 4})"' if beside else ""
        yield (
            f'<line class="bar {kind}{" thin" if beside else ""}"{place}'
            f" {_format_line_ends(x.position_of(so_far), x.position_of(so_far + part))}>"
            f"<title>{escape(about.strip())}</title></line>"
        )
        so_far += part if chart.stacked else 0.0


def _format_line_ends(start: float, stop: float) -> str:
    return f'x1="{start:.2f}%" x2="{stop:.2f}%" y1="50%" y2="50%"'


def _keep_positive(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value) and value > 0]


def _is_bounded(estimate: Estimate) -> bool:
    return estimate.low > 0 and estimate.high < _OPEN * estimate.low


def _draw_estimate(estimate: Estimate, x: Axis) -> Iterator[str]:
    if not _keep_positive([estimate.value]):
        return
    yield f"<title>{escape(f'{estimate.label}{chr(10)}{estimate.figure}')}</title>"
    if not x.contains(estimate.value):
        right = estimate.value > x.high
        end = ' text-anchor="end"' if right else ""
        place = f'x="{100 * right}%" y="50%" dy=".35em"{end}'
        yield f'<text class="beyond" {place}>{_ARROWS[right]}</text>'
        return
    if _is_bounded(estimate) and estimate.low < estimate.high:
        ends = _format_line_ends(x.position_of(estimate.low), x.position_of(estimate.high))
        yield f'<line class="span {estimate.tone}" {ends}/>'
    yield _draw_mark(estimate.tone, f"{x.position_of(estimate.value):.2f}%")


def _draw_mark(tone: str, x: str) -> str:
    if tone == "lose":
        place = f'x="{x}" y="50%" dy=".35em" text-anchor="middle"'
        return f'<text class="cross" {place}>\N{MULTIPLICATION SIGN}</text>'
    return f'<circle class="estimate {tone}" cx="{x}" cy="50%" r="5"/>'


def _draw_cell(x: Axis, parts: Iterator[str] | Sequence[str]) -> str:
    lines = (f"{x.position_of(value):.2f}%" for value in x.list_ticks(5))
    grid = "".join(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="100%"/>' for at in lines)
    return f'<svg aria-hidden="true">{grid}{"".join(parts)}</svg>'


def _draw_scale(x: Axis, suffix: str = "") -> str:
    place = 'y="50%" dy=".35em" text-anchor="middle"'
    ticks = "".join(
        f'<text x="{x.position_of(value):.2f}%" {place}>{x.format_tick(value)}{suffix}</text>'
        for value in x.list_ticks(5)
    )
    return f'<svg aria-hidden="true">{ticks}</svg>'


def _render_row(label: str, drawn: str, figure: str, note: str, tone: str) -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    kind = f' class="{escape(tone, quote=True)}"' if tone else ""
    return (
        f'<tr{kind}><th scope="row">{escape(label)}{small}</th><td class="drawn">{drawn}</td>'
        f'<td class="figure">{escape(figure)}</td></tr>'
    )


def _render_table(title: str, unit: str, scale: str, rows: Sequence[str]) -> str:
    first = f'<th scope="col">{escape(title)}</th>' if title else "<td></td>"
    body = "\n".join(rows)
    return (
        f'<table class="rows">\n<thead><tr>{first}<td class="drawn">{scale}</td>'
        f'<th scope="col">{escape(unit)}</th></tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    )
