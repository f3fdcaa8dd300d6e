"""Charts as Vega-Lite specifications, which a page, a notebook and a file draw alike."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadSettings, escape_control_chars
from ortune.core.section import (
    Bars,
    Chart,
    Estimate,
    Intervals,
    Line,
    Lines,
    Plot,
    Scatter,
)

Spec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

LIGHT: Mapping[str, str] = {
    "ink": "#1a1f29",
    "soft": "#5b6472",
    "line": "#dde1e7",
    "card": "#ffffff",
    "winner": "#0b8a4f",
    "confirmed": "#1d4fa8",
    "once": "#4a90d9",
    "rough": "#a9cdf0",
    "fails": "#d1483f",
    "plain": "#6d7482",
    "s0": "#2457d6",
    "s1": "#c2570c",
    "s2": "#0b7a6f",
    "s3": "#a3308f",
    "s4": "#8a7000",
    "s5": "#5b6472",
}
"""Colour by name, on white; a page has the same names as variables of its style."""

TONES: Mapping[str, str] = {
    "win": "winner",
    "": "confirmed",
    "other": "confirmed",
    "open": "once",
    "final": "confirmed",
    "timed": "once",
    "screen": "rough",
    "rough": "rough",
    "lose": "fails",
    "original": "plain",
    "roof": "ink",
}
"""What a mark stands for -> the name of its colour, the same on every chart."""

_VERSION = "6.4"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_ROW = 24
"""Height of a row, px."""
_SERIES = 6
_VARIABLE = re.compile(r"var\(--(\w+)\)")
_LONGEST = 44
_OPEN = 100.0
"""Intervals of which one end is so many times the other are not drawn: they tell nothing."""


def colour(name: str) -> str:
    """Return a colour of the page's style."""
    return f"var(--{name})"


def draw_chart(plot: Plot) -> Spec:
    """Return a chart as a whole specification, its texts free of control characters."""
    match plot:
        case Chart(spec=spec):
            drawn = dict(spec)
        case Scatter():
            drawn = _draw_scatter(plot)
        case Intervals():
            drawn = _draw_intervals(plot)
        case Bars():
            drawn = _draw_bars(plot)
        case Lines():
            drawn = _draw_lines(plot)
    whole = {"$schema": _SCHEMA, "width": "container", "config": _CONFIG, **drawn}
    cleaned: Spec = _clean(whole)
    return cleaned


def require_plot_suffix(path: Path) -> None:
    """Refuse a name that no plot is written under.

    Raises:
        BadSettings: It ends in something else, or nothing here draws it.
    """
    suffix = path.suffix.lower()
    if suffix not in (".svg", ".png", ".html", ".htm"):
        raise BadSettings(
            f"cannot draw a plot as '{path.name}'", fix="end it in .svg, .png or .html"
        )
    if suffix in (".svg", ".png"):
        _import_converter()


def write_plot(plot: Plot, path: Path) -> Path:
    """Write a plot as SVG or PNG by the end of its name, on white.

    Raises:
        OrtuneError: It cannot be written, or nothing here draws it.
    """
    converter, spec = _import_converter(), draw_for_file(plot)
    with open_output_draft(path, force=True) as draft:
        if path.suffix.lower() == ".png":
            draft.write_bytes(converter.vegalite_to_png(spec, vl_version=_VERSION, scale=2))
        else:
            draft.write_text(render_svg(plot), encoding="utf-8")
    return path


def render_svg(plot: Plot) -> str:
    """Return a plot as SVG, on white.

    Raises:
        BadSettings: Nothing here draws it.
    """
    drawn: str = _import_converter().vegalite_to_svg(draw_for_file(plot), vl_version=_VERSION)
    return drawn


def _import_converter() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise BadSettings(
            "charts are drawn into files by vl-convert-python, which is not installed",
            fix='pip install "vl-convert-python>=1.9", or end the name in .html',
        ) from None
    return vl_convert


def draw_for_file(plot: Plot, width: int = 760) -> Spec:
    """Return a chart with a width and colours of its own, for where no page surrounds it."""
    fit = {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**_resolve(draw_chart(plot)), **fit, "background": LIGHT["card"]}


_CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": colour("soft"),
        "titleColor": colour("ink"),
        "titleFontWeight": "normal",
        "gridColor": colour("line"),
        "domainColor": colour("line"),
        "tickColor": colour("line"),
        "labelFontSize": 12,
        "titleFontSize": 12,
    },
    "axisX": {"tickCount": 8, "labelOverlap": True},
    "axisY": {"labelLimit": 340},
    "legend": {
        "labelColor": colour("ink"),
        "titleColor": colour("soft"),
        "orient": "top",
        "labelFontSize": 12,
        "labelLimit": 400,
        "columns": 4,
    },
    "text": {"fill": colour("ink"), "fontSize": 12},
}


def _clean(value: Any) -> Any:
    """Spell out control characters, and make numbers that JSON does not know null."""
    match value:
        case str():
            return escape_control_chars(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
        case _:
            return value


def _resolve(value: Any) -> Any:
    """Put colours in the place of their names."""
    match value:
        case str():
            return _VARIABLE.sub(lambda found: LIGHT[found[1]], value)
        case dict():
            return {key: _resolve(item) for key, item in value.items()}
        case list():
            return [_resolve(item) for item in value]
        case _:
            return value


def encode_tones(legend: Sequence[tuple[str, str]], shown: Iterable[str]) -> Spec:
    """Return the colour of the field ``tone``, with a legend of the tones that are there."""
    names = dict(legend)
    present = set(shown)
    tones = [tone for tone in names if tone in present]
    tones += [tone for tone in sorted(present) if tone not in names]
    own = [tone for tone in names if tone not in TONES]
    colours = [
        colour(TONES[tone] if tone in TONES else f"s{own.index(tone) % _SERIES}" if own else "s0")
        for tone in tones
    ]
    labels = [names.get(tone, "") for tone in tones]
    key: Spec | None = None
    if any(labels):
        switch = " : ".join(
            f"datum.label === {_quote(tone)} ? {_quote(names[tone])}"
            for tone in tones
            if tone in names
        )
        key = {
            "title": None,
            "symbolType": "circle",
            "values": [tone for tone in tones if names.get(tone)],
            "labelExpr": f"{switch} : datum.label",
        }
    return {"field": "tone", "scale": {"domain": tones, "range": colours}, "legend": key}


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ")
    return f"'{escaped}'"


def _shorten(label: str) -> str:
    first = label.splitlines()[0] if label else ""
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


def _draw_scatter(plot: Scatter) -> Spec:
    """Draw points with their error bars. What lost far off does not stretch the axes."""
    points = [p for p in plot.points if math.isfinite(p.x) and math.isfinite(p.y)]
    limits = [] if plot.limit is None else [(plot.limit.y, "")]
    xs = [(p.x, p.tone) for p in points]
    ys = [(p.y, p.tone) for p in points]
    x_low, x_high = _fit(xs, log=plot.log_x)
    y_low, y_high = _fit([*ys, *limits])
    rows = [
        {
            "x": min(max(p.x, x_low), x_high),
            "y": min(max(p.y, y_low), y_high),
            **dict(zip(("x1", "x2"), _clip(p.x_span, x_low, x_high), strict=True)),
            **dict(zip(("y1", "y2"), _clip(p.y_span, y_low, y_high), strict=True)),
            "label": p.label,
            "name": _shorten(p.label) if p.tone == "win" or index in plot.named else "",
            "tone": p.tone,
            "inside": x_low <= p.x <= x_high and y_low <= p.y <= y_high,
            "size": p.size,
            plot.x_label: p.x,
            plot.y_label: p.y,
        }
        for index, p in enumerate(points)
    ]
    x_scale = {"domain": [x_low, x_high], "nice": False, "type": "log" if plot.log_x else "linear"}
    x = {"field": "x", "type": "quantitative", "title": plot.x_label, "scale": x_scale}
    y = {
        "field": "y",
        "type": "quantitative",
        "title": plot.y_label,
        "scale": {"domain": [y_low, y_high], "nice": False, "zero": False},
    }
    tone = encode_tones(plot.legend, [str(row["tone"]) for row in rows])
    tip = [{"field": "label", "title": "plan"}] + [
        {"field": _escape_field(name), "title": name, "format": ".4~g"}
        for name in (plot.x_label, plot.y_label)
    ]
    sized = any(p.size for p in points)
    size: Spec = {"value": 130}
    if sized:
        tip.append({"field": "size", "title": "MB", "format": ".3~g"})
        size = {
            "field": "size",
            "type": "quantitative",
            "title": "MB",
            "scale": {"type": "sqrt", "range": [50, 420], "zero": True},
            "legend": {"orient": "bottom", "symbolFillColor": colour("soft"), "tickCount": 3},
        }
    layers: list[Spec] = []
    if plot.limit is not None:
        layers += _shade_limit(
            plot.limit.y, y_low if plot.limit.fails_below else y_high, plot.limit.label, x_high
        )
    front = [
        {"x": plot.points[i].x, "y": plot.points[i].y, "order": n}
        for n, i in enumerate(plot.front)
    ]
    if len(front) > 1:
        layers.append(
            {
                "data": {"values": front},
                "mark": {"type": "line", "strokeDash": [4, 3], "color": colour("soft")},
                "encoding": {"x": x, "y": y, "order": {"field": "order"}},
            }
        )
    rule = {"type": "rule", "strokeWidth": 2, "opacity": 0.55}
    inside = [{"filter": "datum.inside"}]
    layers += [
        {
            "transform": inside,
            "mark": rule,
            "encoding": {"x": {**x, "field": "x1"}, "x2": {"field": "x2"}, "y": y, "color": tone},
        },
        {
            "transform": inside,
            "mark": rule,
            "encoding": {"x": x, "y": {**y, "field": "y1"}, "y2": {"field": "y2"}, "color": tone},
        },
        {
            "mark": {
                "type": "point",
                "filled": True,
                "opacity": 0.9,
                "stroke": colour("card"),
                "strokeWidth": 1,
            },
            "encoding": {
                "x": x,
                "y": y,
                "color": tone,
                "size": size,
                "shape": {
                    "field": "inside",
                    "legend": None,
                    "scale": {"domain": [True, False], "range": ["circle", "triangle-up"]},
                },
                "tooltip": tip,
            },
        },
        {
            "transform": [{"filter": "datum.name !== ''"}],
            "mark": {
                "type": "text",
                "dy": -14,
                "fontWeight": "bold",
                "limit": 300,
                "align": {
                    "expr": f"datum.x > {_split(x_low, x_high, plot.log_x)!r} ? 'right' : 'left'"
                },
            },
            "encoding": {"x": x, "y": y, "text": {"field": "name"}},
        },
    ]
    return {
        "description": f"{plot.y_label} against {plot.x_label}",
        "height": 330,
        "data": {"values": rows},
        "layer": layers,
    }


def _clip(span: tuple[float, float] | None, low: float, high: float) -> list[float | None]:
    """Return the ends of an error bar, cut where the axis ends."""
    return [None, None] if span is None else [min(max(end, low), high) for end in span]


def _split(low: float, high: float, log: bool) -> float:
    return math.sqrt(low * high) if log else (low + high) / 2


def _escape_field(name: str) -> str:
    for sign in ".[]'\"":
        name = name.replace(sign, f"\\{sign}")
    return name


def _shade_limit(at: float, end: float, label: str, right: float) -> list[Spec]:
    """Return the budget's line, and a tint of what is beyond it."""
    failing = {"values": [{"y": at, "y2": end, "label": label, "x": right}]}
    y: Spec = {"field": "y", "type": "quantitative"}
    return [
        {
            "data": failing,
            "mark": {"type": "rect", "color": colour("fails"), "opacity": 0.09},
            "encoding": {"y": y, "y2": {"field": "y2"}},
        },
        {
            "data": failing,
            "mark": {"type": "rule", "color": colour("fails"), "strokeDash": [5, 4]},
            "encoding": {"y": y},
        },
        {
            "data": failing,
            "mark": {
                "type": "text",
                "align": "right",
                "dx": -6,
                "dy": 10 if end < at else -10,
                "color": colour("fails"),
            },
            "encoding": {
                "x": {"field": "x", "type": "quantitative"},
                "y": y,
                "text": {"field": "label"},
            },
        },
    ]


def _fit(values: Sequence[tuple[float, str]], *, log: bool = False) -> tuple[float, float]:
    """Return ends of an axis: of what counts, and of what lost within one more range of that."""
    usable = [(v, tone) for v, tone in values if math.isfinite(v) and (v > 0 or not log)]
    if log:
        low, high = _fit([(math.log10(v), tone) for v, tone in usable] or [(0.0, "")])
        return 10.0**low, 10.0**high
    usable = usable or [(0.0, "")]
    kept = [v for v, tone in usable if tone != "lose"] or [v for v, _ in usable]
    low, high = min(kept), max(kept)
    room = (high - low) or max((abs(v - low) for v, _ in usable), default=0.0)
    near = [v for v, _ in usable if low - room <= v <= high + room]
    low, high = min(near), max(near)
    pad = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


def _draw_intervals(plot: Intervals) -> Spec:
    """Draw estimates with their intervals on one logarithmic axis, cut with arrows at its ends."""
    counting = [e for e in plot.rows if e.tone != "lose" and e.value > 0] or [
        e for e in plot.rows if e.value > 0
    ]
    ends = [plot.reference, *(e.value for e in counting)]
    for estimate in counting:
        ends += [estimate.low, estimate.high] if _is_drawn(estimate) else []
    low, high = _fit([(v, "") for v in ends], log=True)
    rows = [
        {
            "row": index,
            "label": e.label,
            "figure": e.figure,
            "note": e.note,
            "tone": e.tone,
            "value": min(max(e.value, low), high) if e.value > 0 else None,
            "low": max(e.low, low) if _is_drawn(e) else None,
            "high": min(e.high, high) if _is_drawn(e) else None,
            "left": low if (_is_drawn(e) and e.low < low) or 0 < e.value < low else None,
            "right": high if (_is_drawn(e) and e.high > high) or e.value > high else None,
        }
        for index, e in enumerate(plot.rows)
    ]
    names = [e.label for e in plot.rows]
    y: Spec = {
        "field": "row",
        "type": "ordinal",
        "title": None,
        "axis": {
            "labelExpr": f"{_list_texts(names)}[datum.value]",
            "domain": False,
            "ticks": False,
        },
    }
    x: Spec = {
        "field": "value",
        "type": "quantitative",
        "title": plot.unit,
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"tickCount": 6, "format": ".3~g"},
    }
    tone = encode_tones(plot.legend, [str(row["tone"]) for row in rows])
    tip = [
        {"field": name, "title": title}
        for name, title in (("label", plot.title), ("figure", plot.unit), ("note", " "))
    ]
    arrow: Spec = {"type": "point", "filled": True, "size": 60}
    return {
        "description": f"{plot.unit} of every {plot.title}",
        "height": {"step": _ROW},
        "data": {"values": rows},
        "encoding": {"y": y, "tooltip": tip},
        "layer": [
            {
                "data": {"values": [{"at": plot.reference}]},
                "mark": {"type": "rule", "color": colour("ink")},
                "encoding": {
                    "x": {**x, "field": "at"},
                    "y": {"value": 0},
                    "y2": {"value": "height"},
                    "tooltip": {"value": None},
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 6, "opacity": 0.45, "strokeCap": "round"},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": tone},
            },
            {
                "mark": {**arrow, "shape": "triangle-left"},
                "encoding": {"x": {**x, "field": "left"}, "color": tone},
            },
            {
                "mark": {**arrow, "shape": "triangle-right"},
                "encoding": {"x": {**x, "field": "right"}, "color": tone},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                "encoding": {"x": x, "color": tone},
            },
        ],
    }


def _is_drawn(estimate: Estimate) -> bool:
    return estimate.low > 0 and estimate.low < estimate.high < _OPEN * estimate.low


def _list_texts(texts: Sequence[str]) -> str:
    return f"[{', '.join(_quote(_shorten(text)) for text in texts)}]"


def _draw_bars(chart: Bars) -> Spec:
    """Draw horizontal bars from zero, the notes behind them."""
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
    y: Spec = {
        "field": "row",
        "type": "ordinal",
        "title": None,
        "axis": {
            "labelExpr": f"{_list_texts([bar.label for bar in chart.bars])}[datum.value]",
            "domain": False,
            "ticks": False,
        },
    }
    x = {"field": "value", "type": "quantitative", "title": chart.unit}
    colours = [colour(f"s{place % _SERIES}") for place in range(len(chart.segments))]
    if chart.segments == ("original", "winner"):
        colours = [colour("plain"), colour("winner")]
    tone: Spec = encode_tones((), [str(row["tone"]) for row in rows])
    if many:
        tone = {
            "field": "segment",
            "type": "nominal",
            "sort": None,
            "scale": {"domain": list(chart.segments), "range": colours},
            "legend": {"title": None, "symbolType": "square"},
        }
    encoding: Spec = {"y": y, "x": x, "color": tone}
    beside = many and not chart.stacked
    if beside:
        encoding["yOffset"] = {"field": "place", "type": "ordinal"}
    if many and chart.stacked:
        encoding["order"] = {"field": "place"}
    tip = [
        {"field": "label", "title": " "},
        *([{"field": "segment", "title": "part"}] if many else []),
        {"field": "value", "title": chart.unit, "format": ".4~g"},
        *([{"field": "note", "title": "in all"}] if any(bar.note for bar in chart.bars) else []),
    ]
    lengths = [sum(b.parts) if chart.stacked else max(b.parts, default=0.0) for b in chart.bars]
    ends = [
        {"row": n, "end": end, "note": bar.note, "inside": end > max(lengths) / 2}
        for n, (bar, end) in enumerate(zip(chart.bars, lengths, strict=True))
    ]
    return {
        "description": f"{chart.unit}, a bar each",
        "height": {
            "step": _ROW * (len(chart.segments) * 0.6 if many and not chart.stacked else 1)
        },
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "bar"}, "encoding": {**encoding, "tooltip": tip}},
            {
                "data": {"values": ends},
                "mark": {
                    "type": "text",
                    "align": {"expr": "datum.inside ? 'right' : 'left'"},
                    "dx": {"expr": "datum.inside ? -6 : 6"},
                    "color": {"expr": f"datum.inside ? '{colour('card')}' : '{colour('ink')}'"},
                },
                "encoding": {"y": y, "x": {**x, "field": "end"}, "text": {"field": "note"}},
            },
        ],
    }


def name_line_colour(chart: Lines, line: Line) -> str:
    """Return the colour of a line: of its tone, or the next one."""
    if line.tone:
        return colour(TONES.get(line.tone, "s0"))
    plain = [other for other in chart.lines if not other.tone]
    return colour(f"s{next(i for i, other in enumerate(plain) if other is line) % _SERIES}")


def _draw_lines(chart: Lines) -> Spec:
    """Draw series, and marks over them, of which the first are named."""

    def is_usable(x: float, y: float) -> bool:
        return (
            math.isfinite(x)
            and math.isfinite(y)
            and (x > 0 or not chart.log_x)
            and (y > 0 or not chart.log_y)
        )

    rows = [
        {"x": x, "y": y, "line": index, "order": order, "name": line.name}
        for index, line in enumerate(chart.lines)
        for order, (x, y) in enumerate(line.points)
        if is_usable(x, y)
    ]
    marks = [
        {
            "x": mark.x,
            "y": mark.y,
            "label": mark.label,
            "tone": mark.tone,
            "name": _shorten(mark.label) if place < chart.named else "",
        }
        for place, mark in enumerate(m for m in chart.marks if is_usable(m.x, m.y))
    ]
    filled = any(line.filled for line in chart.lines)
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": chart.x_label,
        "scale": {"type": "log" if chart.log_x else "linear", "nice": False, "zero": False},
    }
    y: Spec = {
        "field": "y",
        "type": "quantitative",
        "title": chart.y_label,
        "scale": {"type": "log" if chart.log_y else "linear", "zero": filled},
    }
    if chart.log_x:
        x["axis"] = {"format": "~s", "tickCount": 6}
    if chart.log_y:
        y["axis"] = {"format": "~s", "tickCount": 6}
    if not rows and not marks:
        x["scale"]["domain"] = y["scale"]["domain"] = [1, 10]
    lines = list(range(len(chart.lines)))
    names = [line.name for line in chart.lines]
    series: Spec = {
        "field": "line",
        "type": "nominal",
        "scale": {
            "domain": lines,
            "range": [name_line_colour(chart, line) for line in chart.lines],
        },
        "legend": {
            "title": None,
            "symbolType": "stroke",
            "values": [i for i in lines if names[i]],
            "labelExpr": f"{_list_texts(names)}[datum.value]",
        }
        if any(names)
        else None,
    }
    spans = [index for index, line in enumerate(chart.lines) if line.filled]
    encoding: Spec = {
        "x": x,
        "y": y,
        "order": {"field": "order"},
        "color": series,
        "tooltip": [
            {"field": "name", "title": "line"},
            {"field": "x", "title": chart.x_label, "format": ".4~g"},
            {"field": "y", "title": chart.y_label, "format": ".4~g"},
        ],
    }
    layers: list[Spec] = []
    if spans:
        layers.append(
            {
                "transform": [{"filter": {"field": "line", "oneOf": spans}}],
                "mark": {"type": "area", "opacity": 0.16, "line": False},
                "encoding": {**encoding, "y": {**y, "stack": None}},
            }
        )
    layers.append({"mark": {"type": "line", "strokeWidth": 2, "clip": True}, "encoding": encoding})
    if marks:
        tone = encode_tones(chart.legend, [str(mark["tone"]) for mark in marks])
        place: Spec = {"x": x, "y": y}
        layers += [
            {
                "data": {"values": marks},
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                "encoding": {
                    **place,
                    "color": tone,
                    "tooltip": [
                        {"field": "label", "title": " "},
                        {"field": "x", "title": chart.x_label, "format": ".4~g"},
                        {"field": "y", "title": chart.y_label, "format": ".4~g"},
                    ],
                },
            },
            {
                "data": {"values": marks},
                "transform": [{"filter": "datum.name !== ''"}],
                "mark": {"type": "text", "align": "left", "dx": 8, "dy": -6, "limit": 220},
                "encoding": {**place, "text": {"field": "name"}},
            },
        ]
    return {
        "description": f"{chart.y_label} against {chart.x_label}",
        "height": 300,
        "data": {"values": rows},
        "layer": layers,
        "resolve": {"scale": {"color": "independent"}},
    }
