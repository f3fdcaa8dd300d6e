"""Intervals and bars, a row each, as Vega-Lite specifications."""

from __future__ import annotations

from typing import Any

from ortune.core.section import Bars, Estimate, Intervals
from ortune.reporting.charts.style import (
    SERIES,
    Spec,
    colour,
    encode_rows,
    encode_tones,
    fit_axis,
    make_quantity,
    make_tip,
)

_ROW = 24
"""Height of a row, px."""
_OPEN = 100.0
"""Intervals of which one end is so many times the other are not drawn: they tell nothing."""


def draw_intervals(plot: Intervals) -> Spec:
    """Draw estimates with their intervals on one logarithmic axis, cut with arrows at its ends."""
    ends = _fit_intervals(plot)
    rows = [_make_row(index, estimate, ends) for index, estimate in enumerate(plot.rows)]
    x = make_quantity("value", plot.unit, log=True, domain=list(ends))
    x["axis"] = {"tickCount": 6, "format": ".3~g"}
    tone = encode_tones(plot.legend, [estimate.tone for estimate in plot.rows])
    arrow = {"type": "point", "filled": True, "size": 60}
    tall = {"y": {"value": 0}, "y2": {"value": "height"}, "tooltip": {"value": None}}
    layers: list[tuple[Spec, Spec]] = [
        (
            {"type": "rule", "strokeWidth": 6, "opacity": 0.45, "strokeCap": "round"},
            {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
        ),
        ({**arrow, "shape": "triangle-left"}, {"x": {**x, "field": "left"}}),
        ({**arrow, "shape": "triangle-right"}, {"x": {**x, "field": "right"}}),
        ({"type": "point", "filled": True, "size": 90, "opacity": 1}, {"x": x}),
    ]
    return {
        "description": f"{plot.unit} of every {plot.title}",
        "height": {"step": _ROW},
        "data": {"values": rows},
        "encoding": {
            "y": encode_rows([estimate.label for estimate in plot.rows]),
            "tooltip": make_tip([("label", plot.title), ("figure", plot.unit), ("note", " ")]),
        },
        "layer": [
            {
                "data": {"values": [{"at": plot.reference}]},
                "mark": {"type": "rule", "color": colour("ink")},
                "encoding": {"x": {**x, "field": "at"}, **tall},
            },
            *({"mark": mark, "encoding": {**place, "color": tone}} for mark, place in layers),
        ],
    }


def _fit_intervals(plot: Intervals) -> tuple[float, float]:
    """Return the ends of the axis: of what did not lose, where anything did not."""
    positive = [estimate for estimate in plot.rows if estimate.value > 0]
    counting = [estimate for estimate in positive if estimate.tone != "lose"] or positive
    ends = [plot.reference, *(estimate.value for estimate in counting)]
    for estimate in counting:
        ends += [estimate.low, estimate.high] if _is_drawn(estimate) else []
    return fit_axis([(value, "") for value in ends], log=True)


def _make_row(index: int, estimate: Estimate, ends: tuple[float, float]) -> dict[str, Any]:
    low, high = ends
    value, drawn = estimate.value, _is_drawn(estimate)
    return {
        "row": index,
        "label": estimate.label,
        "figure": estimate.figure,
        "note": estimate.note,
        "tone": estimate.tone,
        "value": min(max(value, low), high) if value > 0 else None,
        "low": max(estimate.low, low) if drawn else None,
        "high": min(estimate.high, high) if drawn else None,
        "left": low if (drawn and estimate.low < low) or 0 < value < low else None,
        "right": high if (drawn and estimate.high > high) or value > high else None,
    }


def _is_drawn(estimate: Estimate) -> bool:
    return estimate.low > 0 and estimate.low < estimate.high < _OPEN * estimate.low


def draw_bars(chart: Bars) -> Spec:
    """Draw horizontal bars from zero, each with its note at its end."""
    rows = [
        {
            "row": index,
            "label": bar.label,
            "segment": segment,
            "place": place,
            "value": length,
            "note": bar.note,
            "tone": bar.tone,
        }
        for index, bar in enumerate(chart.bars)
        for place, (segment, length) in enumerate(zip(chart.segments, bar.parts, strict=True))
    ]
    many = len(chart.segments) > 1
    beside = many and not chart.stacked
    y = encode_rows([bar.label for bar in chart.bars])
    longest = max((length for bar in chart.bars for length in bar.parts), default=0.0)
    room: dict[str, Any] = {"domain": [0, 1.3 * longest]} if beside and longest else {}
    x = make_quantity("value", chart.unit, zero=True, **room)
    encoding: Spec = {"y": y, "x": x, "color": _encode_segments(chart)}
    if beside:
        encoding["yOffset"] = {"field": "place", "type": "ordinal"}
    elif many:
        encoding["order"] = {"field": "place"}
    texts = [("label", " "), *[("segment", "part")] * many]
    tip = make_tip(texts, [("value", chart.unit)])
    return {
        "description": f"{chart.unit}, a bar each",
        "height": {"step": _ROW / 2 if beside else _ROW},
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "bar"}, "encoding": {**encoding, "tooltip": tip}},
            _write_notes(chart, x, y),
        ],
    }


def _encode_segments(chart: Bars) -> Spec:
    """Return the colour of a bar by its segment; of bars of one segment, by their tone."""
    if len(chart.segments) == 1:
        return encode_tones((), [bar.tone for bar in chart.bars])
    colours = [colour(f"s{place % SERIES}") for place in range(len(chart.segments))]
    if chart.segments == ("original", "winner"):
        colours = [colour("plain"), colour("winner")]
    return {
        "field": "segment",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": list(chart.segments), "range": colours},
        "legend": {"title": None, "symbolType": "square"},
    }


def _write_notes(chart: Bars, x: Spec, y: Spec) -> Spec:
    """Return the notes: inside of long bars, behind short ones and behind bars in groups."""
    lengths = [sum(b.parts) if chart.stacked else max(b.parts, default=0.0) for b in chart.bars]
    notes = [
        {
            "row": n,
            "end": end,
            "note": bar.note,
            "inside": chart.stacked and end > max(lengths) / 2,
        }
        for n, (bar, end) in enumerate(zip(chart.bars, lengths, strict=True))
    ]
    mark = {
        "type": "text",
        "align": {"expr": "datum.inside ? 'right' : 'left'"},
        "dx": {"expr": "datum.inside ? -6 : 6"},
        "color": {"expr": f"datum.inside ? '{colour('card')}' : '{colour('ink')}'"},
    }
    encoding = {"y": y, "x": {**x, "field": "end"}, "text": {"field": "note"}}
    return {"data": {"values": notes}, "mark": mark, "encoding": encoding}
