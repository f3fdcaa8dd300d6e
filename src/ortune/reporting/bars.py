"""Horizontal bars as inline SVG: no script, colours from the page."""

from __future__ import annotations

from html import escape

from ortune.core.section import Bar, Bars
from ortune.reporting.axis import Axis
from ortune.reporting.canvas import CHARACTER, middle_cut, shortened, text

_WIDTH = 760
_ROW, _THICK = 24, 15
_TOP, _BOTTOM, _RIGHT, _GAP = 8, 46, 16, 8
_WIDEST_LABEL, _WIDEST_NOTE = 34, 30
"""Letters of a label and of a note that are shown; the rest is in the tool tip."""


def svg(chart: Bars) -> str:
    """Draw the chart: labels to the left, notes behind the bars, the scale below."""
    labels = [middle_cut(bar.label, _WIDEST_LABEL) for bar in chart.bars]
    notes = [shortened(bar.note, _WIDEST_NOTE) for bar in chart.bars]
    left = 12 + max(map(len, labels), default=0) * CHARACTER + _GAP
    right = _WIDTH - _RIGHT - max(map(len, notes), default=0) * CHARACTER - _GAP
    x = Axis(0.0, max((sum(bar.parts) for bar in chart.bars), default=0.0) or 1.0, left, right)
    height = _TOP + _ROW * len(chart.bars) + _BOTTOM
    label = escape(f"bars: {chart.unit}", quote=True)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">',
        *_scale(chart, x, height - _BOTTOM),
    ]
    for index, bar in enumerate(chart.bars):
        top = _TOP + _ROW * index
        middle = top + _ROW / 2 + 4
        parts.append(text(left - _GAP, middle, labels[index], "label end"))
        parts += _segments(chart, bar, x, top + (_ROW - _THICK) / 2)
        parts.append(text(x.at(sum(bar.parts)) + _GAP, middle, notes[index], "label"))
    return "\n".join([*parts, "</svg>"])


def segment_class(chart: Bars, index: int, tone: str = "") -> str:
    """Return a segment's class: the bar's tone where there is one segment, else its colour."""
    return tone if tone and len(chart.segments) == 1 else f"s{index % 6}"


def _scale(chart: Bars, x: Axis, bottom: int) -> list[str]:
    parts = []
    for value in x.ticks(5):
        parts.append(f'<path class="grid" d="M{x.at(value):.1f} {_TOP}V{bottom}"/>')
        parts.append(text(x.at(value), bottom + 18, x.tick(value), "tick middle"))
    parts.append(f'<path class="axis" d="M{x.start:.1f} {_TOP}V{bottom}"/>')
    parts.append(text((x.start + x.stop) / 2, bottom + 40, chart.unit, "title middle"))
    return parts


def _segments(chart: Bars, bar: Bar, x: Axis, top: float) -> list[str]:
    found, so_far = [], 0.0
    for index, (name, part) in enumerate(zip(chart.segments, bar.parts, strict=True)):
        start, stop = x.at(so_far), x.at(so_far + part)
        so_far += part
        about = f"{bar.label}\n{name + ': ' if name else ''}{part:.4g} {chart.unit}\n{bar.note}"
        kind = escape(segment_class(chart, index, bar.tone), quote=True)
        found.append(
            f'<rect class="bar {kind}" x="{start:.1f}" y="{top:.1f}" width="{stop - start:.1f}"'
            f' height="{_THICK}"><title>{escape(about.strip())}</title></rect>'
        )
    return found
