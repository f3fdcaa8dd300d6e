"""Bars and intervals as table rows with a drawn cell: labels wrap, the drawing stretches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from ortune.core.section import Bar, Bars, Estimate, Intervals
from ortune.reporting.canvas import Axis, spanning

_ENDS = (2.0, 98.0)
"""Where an axis ends, % of the cell's width."""
_ARROWS = (
    "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
)
_OPEN = 100.0
"""Intervals of which one end is so many times the other are not drawn: they tell nothing."""


def bars(chart: Bars) -> str:
    """Draw bars from zero, each with its label to the left and its note to the right."""
    longest = max((_length(chart, bar) for bar in chart.bars), default=0.0) or 1.0
    x = Axis(0.0, longest, 0.0, _ENDS[1])
    rows = [
        _row(bar.label, _drawn(x, _segments(chart, bar, x)), bar.note, "", bar.tone)
        for bar in chart.bars
    ]
    return _table("", chart.unit, _scale(x), rows)


def intervals(plot: Intervals) -> str:
    """Draw estimates with their intervals on one logarithmic axis."""
    # Span what counts; what lost is drawn at the edge where it lies far from that.
    kept = [one for one in plot.rows if one.tone != "lose"] or plot.rows
    ends = [plot.reference, *(one.value for one in kept)]
    for one in kept:
        ends += [one.low, one.high] if _bounded(one) else []
    low, high = min(_positive(ends)), max(_positive(ends))
    room = max(high / low, 1.5)
    near = [one.value for one in plot.rows if low / room <= one.value <= high * room]
    x = spanning([low, high, *near], *_ENDS, log=True)
    at = f"{x.at(plot.reference):.2f}%"
    line = f'<line class="reference" x1="{at}" x2="{at}" y1="0" y2="100%"/>'
    rows = [
        _row(one.label, _drawn(x, [line, *_estimate(one, x)]), one.figure, one.note, one.tone)
        for one in plot.rows
    ]
    return _table(plot.title, plot.unit, _scale(x, "x"), rows)


def segment_class(chart: Bars, index: int, tone: str = "") -> str:
    """Return a segment's class: the bar's tone where there is one segment, else its colour."""
    return tone if tone and len(chart.segments) == 1 else f"s{index % 6}"


def sign(tone: str) -> str:
    """Return the mark of a tone in the middle of a drawing, as in the rows."""
    return _mark(tone, "50%")


def _length(chart: Bars, bar: Bar) -> float:
    return sum(bar.parts) if chart.stacked else max(bar.parts, default=0.0)


def _segments(chart: Bars, bar: Bar, x: Axis) -> Iterator[str]:
    so_far, beside = 0.0, len(bar.parts) > 1 and not chart.stacked
    for index, (name, part) in enumerate(zip(chart.segments, bar.parts, strict=True)):
        about = f"{bar.label}\n{name + ': ' if name else ''}{part:.4g} {chart.unit}\n{bar.note}"
        kind = escape(segment_class(chart, index, bar.tone), quote=True)
        place = f' transform="translate(0 {8 * index - 4})"' if beside else ""
        yield (
            f'<line class="bar {kind}{" thin" if beside else ""}"{place}'
            f" {_level(x.at(so_far), x.at(so_far + part))}>"
            f"<title>{escape(about.strip())}</title></line>"
        )
        so_far += part if chart.stacked else 0.0


def _level(start: float, stop: float) -> str:
    return f'x1="{start:.2f}%" x2="{stop:.2f}%" y1="50%" y2="50%"'


def _positive(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value) and value > 0]


def _bounded(one: Estimate) -> bool:
    return one.low > 0 and one.high < _OPEN * one.low


def _estimate(one: Estimate, x: Axis) -> Iterator[str]:
    if not _positive([one.value]):
        return
    yield f"<title>{escape(f'{one.label}{chr(10)}{one.figure}')}</title>"
    if not x.holds(one.value):
        right = one.value > x.high
        end = ' text-anchor="end"' if right else ""
        place = f'x="{100 * right}%" y="50%" dy=".35em"{end}'
        yield f'<text class="beyond" {place}>{_ARROWS[right]}</text>'
        return
    if _bounded(one) and one.low < one.high:
        yield f'<line class="span {one.tone}" {_level(x.at(one.low), x.at(one.high))}/>'
    yield _mark(one.tone, f"{x.at(one.value):.2f}%")


def _mark(tone: str, x: str) -> str:
    if tone == "lose":
        place = f'x="{x}" y="50%" dy=".35em" text-anchor="middle"'
        return f'<text class="cross" {place}>\N{MULTIPLICATION SIGN}</text>'
    return f'<circle class="estimate {tone}" cx="{x}" cy="50%" r="5"/>'


def _drawn(x: Axis, parts: Iterator[str] | Sequence[str]) -> str:
    lines = (f"{x.at(value):.2f}%" for value in x.ticks(5))
    grid = "".join(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="100%"/>' for at in lines)
    return f'<svg aria-hidden="true">{grid}{"".join(parts)}</svg>'


def _scale(x: Axis, suffix: str = "") -> str:
    place = 'y="50%" dy=".35em" text-anchor="middle"'
    ticks = "".join(
        f'<text x="{x.at(value):.2f}%" {place}>{x.tick(value)}{suffix}</text>'
        for value in x.ticks(5)
    )
    return f'<svg aria-hidden="true">{ticks}</svg>'


def _row(label: str, drawn: str, figure: str, note: str, tone: str) -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    kind = f' class="{escape(tone, quote=True)}"' if tone else ""
    return (
        f'<tr{kind}><th scope="row">{escape(label)}{small}</th><td class="drawn">{drawn}</td>'
        f'<td class="figure">{escape(figure)}</td></tr>'
    )


def _table(title: str, unit: str, scale: str, rows: Sequence[str]) -> str:
    first = f'<th scope="col">{escape(title)}</th>' if title else "<td></td>"
    body = "\n".join(rows)
    return (
        f'<table class="rows">\n<thead><tr>{first}<td class="drawn">{scale}</td>'
        f'<th scope="col">{escape(unit)}</th></tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    )
