"""Charts as Vega-Lite specifications, which a page, a notebook and a file draw alike."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadSettings, escape_control_chars
from ortune.core.section import Bars, Chart, Estimate, Intervals, Lines, Plot, Point, Scatter
from ortune.reporting.charts.style import (
    LIGHT,
    SERIES,
    TONES,
    Spec,
    colour,
    encode_rows,
    encode_tones,
    fit_axis,
    list_texts,
    make_quantity,
    make_tip,
    shorten_label,
)

_VERSION = "6.4"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_VARIABLE = re.compile(r"var\(--(\w+)\)")


def draw_chart(plot: Plot) -> Spec:
    """Return a chart as a whole specification, its texts free of control characters."""
    match plot:
        case Chart(spec=spec):
            drawn = dict(spec)
        case Scatter():
            drawn = draw_scatter(plot)
        case Intervals():
            drawn = draw_intervals(plot)
        case Bars():
            drawn = draw_bars(plot)
        case Lines():
            drawn = draw_lines(plot)
    whole = {"width": "container", "config": _CONFIG, **drawn}
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


def draw_for_file(plot: Plot) -> Spec:
    """Return a chart with a width and colours of its own, for where no page surrounds it."""
    fit = {"width": 760, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {"$schema": _SCHEMA, **_resolve(draw_chart(plot)), **fit, "background": LIGHT["card"]}


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
            return _VARIABLE.sub(lambda name: LIGHT[name[1]], value)
        case dict():
            return {key: _resolve(item) for key, item in value.items()}
        case list():
            return [_resolve(item) for item in value]
        case _:
            return value


_ASIDE, _ABOVE = 0.3, 0.06
"""Names nearer to each other than these shares of the axes would lie on top of each other."""
_LINES_PX, _LABEL_PX, _APART_PX = 300, 210, 14
"""Height of a chart of lines; longest name at a line's end, and the least between two names."""
_LARGE = 1e6
"""Figures from here on are written with their power, such as 2M."""
_NAMED = [{"filter": "datum.name !== ''"}]


def draw_scatter(plot: Scatter) -> Spec:
    """Draw points with their error bars. What lost far off does not stretch the axes."""
    points = [p for p in plot.points if math.isfinite(p.x) and math.isfinite(p.y)]
    limits = [] if plot.limit is None else [(plot.limit.y, "")]
    x_ends = fit_axis([(p.x, p.tone) for p in points], log=plot.log_x)
    y_ends = fit_axis([*((p.y, p.tone) for p in points), *limits])
    x = make_quantity("x", plot.x_label, log=plot.log_x, domain=list(x_ends))
    y = make_quantity("y", plot.y_label, domain=list(y_ends))
    layers: list[Spec] = []
    if plot.limit is not None:
        end = y_ends[0] if plot.limit.fails_below else y_ends[1]
        layers += _shade_limit(plot.limit.y, end, plot.limit.label, x_ends[1])
    if len(plot.front) > 1:
        places = [plot.points[index] for index in plot.front]
        rows = [{"x": p.x, "y": p.y, "order": place} for place, p in enumerate(places)]
        line = {"type": "line", "strokeDash": [4, 3], "color": colour("soft")}
        encoding = {"x": x, "y": y, "order": {"field": "order"}}
        layers.append({"data": {"values": rows}, "mark": line, "encoding": encoding})
    middle = math.sqrt(math.prod(x_ends)) if plot.log_x else sum(x_ends) / 2
    side = {"expr": f"datum.x > {middle!r} ? 'right' : 'left'"}
    mark = {"type": "text", "dy": -14, "fontWeight": "bold", "limit": 300, "align": side}
    encoding = {"x": x, "y": y, "text": {"field": "name"}}
    layers += [
        *_list_marks(plot, points, x, y),
        {"transform": _NAMED, "mark": mark, "encoding": encoding},
    ]
    return {
        "description": f"{plot.y_label} against {plot.x_label}",
        "height": 330,
        "data": {"values": _list_points(plot, points, x_ends, y_ends)},
        "layer": layers,
    }


def _list_points(
    plot: Scatter,
    points: Sequence[Point],
    x_ends: tuple[float, float],
    y_ends: tuple[float, float],
) -> list[dict[str, Any]]:
    """Return a row a point, those beyond the axes at their ends, the winner's on top of others."""
    names = _name_points(plot, points, x_ends, y_ends)
    rows = [
        {
            "x": _clip(p.x, x_ends),
            "y": _clip(p.y, y_ends),
            "x1": p.x_span and _clip(p.x_span[0], x_ends),
            "x2": p.x_span and _clip(p.x_span[1], x_ends),
            "y1": p.y_span and _clip(p.y_span[0], y_ends),
            "y2": p.y_span and _clip(p.y_span[1], y_ends),
            "label": p.label,
            "name": names.get(index, ""),
            "tone": p.tone,
            "inside": p.x == _clip(p.x, x_ends) and p.y == _clip(p.y, y_ends),
            "size": p.size,
            "true x": p.x,
            "true y": p.y,
        }
        for index, p in enumerate(points)
    ]
    return sorted(rows, key=lambda row: row["tone"] == "win")


def _name_points(
    plot: Scatter,
    points: Sequence[Point],
    x_ends: tuple[float, float],
    y_ends: tuple[float, float],
) -> dict[int, str]:
    """Return the names to write: the winner's first, then those with room beside the others'."""
    wanting = [index for index, p in enumerate(points) if p.tone == "win" or index in plot.named]
    names: dict[int, str] = {}
    places: list[tuple[float, float]] = []
    for index in sorted(wanting, key=lambda index: points[index].tone != "win"):
        point = points[index]
        x = _find_share(point.x, x_ends, log=plot.log_x)
        y = _find_share(point.y, y_ends)
        if all(abs(x - near_x) > _ASIDE or abs(y - near_y) > _ABOVE for near_x, near_y in places):
            names[index] = shorten_label(point.label)
            places.append((x, y))
    return names


def _find_share(value: float, ends: tuple[float, float], *, log: bool = False) -> float:
    """Return where a value lies between the ends of its axis, from 0 to 1."""
    low, at, high = (
        math.log(end) if log else end for end in (ends[0], _clip(value, ends), ends[1])
    )
    return (at - low) / (high - low)


def _clip(value: float, ends: tuple[float, float]) -> float:
    return min(max(value, ends[0]), ends[1])


def _list_marks(plot: Scatter, points: Sequence[Point], x: Spec, y: Spec) -> list[Spec]:
    """Return the layers of the error bars and of the points; their area is their size."""
    tone = encode_tones(plot.legend, [p.tone for p in points])
    tip = make_tip([("label", "plan")], [("true x", plot.x_label), ("true y", plot.y_label)])
    size: Spec = {"value": 130}
    if any(p.size for p in points):
        tip += make_tip((), [("size", "MB")])
        size = {
            "field": "size",
            "type": "quantitative",
            "title": "MB",
            "scale": {"type": "sqrt", "range": [50, 420], "zero": True},
            "legend": {"orient": "bottom", "symbolFillColor": colour("soft"), "tickCount": 3},
        }
    shapes = {"domain": [True, False], "range": ["circle", "triangle-up"]}
    rule: Spec = {"type": "rule", "strokeWidth": 2, "opacity": 0.55}
    inside = [{"filter": "datum.inside"}]
    spans: list[Spec] = [
        {"x": {**x, "field": "x1"}, "x2": {"field": "x2"}, "y": y},
        {"x": x, "y": {**y, "field": "y1"}, "y2": {"field": "y2"}},
    ]
    mark: Spec = {"type": "point", "filled": True, "opacity": 0.9, "strokeWidth": 1}
    shape = {"field": "inside", "legend": None, "scale": shapes}
    encoding = {"x": x, "y": y, "color": tone, "size": size, "shape": shape, "tooltip": tip}
    layers: list[Spec] = [
        {"transform": inside, "mark": rule, "encoding": span | {"color": tone}} for span in spans
    ]
    return [*layers, {"mark": {**mark, "stroke": colour("card")}, "encoding": encoding}]


def _shade_limit(at: float, end: float, label: str, right: float) -> list[Spec]:
    """Return the budget's line, and a tint of what is beyond it."""
    failing = {"values": [{"y": at, "y2": end, "label": label, "x": right}]}
    y: Spec = {"field": "y", "type": "quantitative"}
    label_mark = {"type": "text", "align": "right", "dx": -6, "dy": 10 if end < at else -10}
    x: Spec = {"field": "x", "type": "quantitative"}
    layers: list[tuple[Spec, Spec]] = [
        ({"type": "rect", "opacity": 0.09}, {"y": y, "y2": {"field": "y2"}}),
        ({"type": "rule", "strokeDash": [5, 4]}, {"y": y}),
        (label_mark, {"x": x, "y": y, "text": {"field": "label"}}),
    ]
    return [
        {"data": failing, "mark": {**mark, "color": colour("fails")}, "encoding": encoding}
        for mark, encoding in layers
    ]


def draw_lines(chart: Lines) -> Spec:
    """Draw series, and marks over them, of which the first are named."""
    rows = [
        {"x": x, "y": y, "line": index, "order": order, "name": line.name}
        for index, line in enumerate(chart.lines)
        for order, (x, y) in enumerate(line.points)
        if _fits_axes(chart, x, y)
    ]
    marks = [mark for mark in chart.marks if _fits_axes(chart, mark.x, mark.y)]
    spans = [index for index, line in enumerate(chart.lines) if line.filled]
    ends = {} if rows or marks else {"domain": [1, 10]}
    x = make_quantity("x", chart.x_label, log=chart.log_x, **ends)
    y = make_quantity("y", chart.y_label, log=chart.log_y, zero=bool(spans), **ends)
    for axis, log in ((x, chart.log_x), (y, chart.log_y)):
        if log:
            values = [value for line in chart.lines for point in line.points for value in point]
            large = max(map(abs, values), default=1.0) >= _LARGE
            axis["axis"] = {"format": "~s" if large else ",~r", "tickCount": 6}
    figures = [("x", chart.x_label), ("y", chart.y_label)]
    names = [line.name for line in chart.lines]
    legend: Spec | None = None
    if any(names) and not chart.ends:
        legend = {
            "title": None,
            "symbolType": "stroke",
            "values": [index for index, name in enumerate(names) if name],
            "labelExpr": f"{list_texts(names)}[datum.value]",
        }
    colours, plain = [], 0
    for line in chart.lines:  # of its tone, or the next one
        colours.append(colour(TONES.get(line.tone, "s0") if line.tone else f"s{plain % SERIES}"))
        plain += not line.tone
    scale = {"domain": list(range(len(names))), "range": colours}
    encoding: Spec = {
        "x": x,
        "y": y,
        "order": {"field": "order"},
        "color": {"field": "line", "type": "nominal", "scale": scale, "legend": legend},
        "tooltip": make_tip([("name", "line")], figures),
    }
    layers: list[Spec] = []
    if spans:
        area = {"type": "area", "opacity": 0.16, "line": False}
        inside = [{"filter": {"field": "line", "oneOf": spans}}]
        under = {**encoding, "y": {**y, "stack": None}}
        layers.append({"transform": inside, "mark": area, "encoding": under})
    layers.append({"mark": {"type": "line", "strokeWidth": 2, "clip": True}, "encoding": encoding})
    if marks:
        layers += _draw_marks(chart, marks, {"x": x, "y": y}, make_tip([("label", " ")], figures))
    if chart.ends and rows:
        labels = {"values": _place_end_labels(chart, rows)}
        mark = {"type": "text", "align": "left", "dx": 6, "limit": _LABEL_PX}
        at_ends = {"x": x, "y": y, "color": encoding["color"], "text": {"field": "name"}}
        layers.append({"data": labels, "mark": mark, "encoding": at_ends})
    return {
        "description": f"{chart.y_label} against {chart.x_label}",
        "height": _LINES_PX,
        "data": {"values": rows},
        "layer": layers,
        "resolve": {"scale": {"color": "independent"}},
    }


def _place_end_labels(chart: Lines, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the last point of every line, moved along y until no name lies on another."""
    scale = math.log if chart.log_y else float
    heights = [scale(row["y"]) for row in rows]
    apart = _APART_PX / _LINES_PX * ((max(heights) - min(heights)) or 1.0)
    ends = sorted({row["line"]: row for row in rows}.values(), key=lambda row: row["y"])
    labels: list[dict[str, Any]] = []
    below = -math.inf
    for row in ends:
        below = max(scale(row["y"]), below + apart)
        labels.append({**row, "y": math.exp(below) if chart.log_y else below})
    return labels


def _fits_axes(chart: Lines, x: float, y: float) -> bool:
    """Whether a point is finite, and above zero where an axis is logarithmic."""
    pairs = ((x, chart.log_x), (y, chart.log_y))
    return all(math.isfinite(value) and (value > 0 or not log) for value, log in pairs)


def _draw_marks(
    chart: Lines, marks: Sequence[Point], place: Spec, tip: Sequence[Spec]
) -> list[Spec]:
    rows = [
        {"x": mark.x, "y": mark.y, "label": mark.label, "tone": mark.tone, "name": name}
        for index, mark in enumerate(marks)
        for name in [shorten_label(mark.label) if index < chart.named else ""]
    ]
    tone = encode_tones(chart.legend, [mark.tone for mark in marks])
    return [
        {
            "data": {"values": rows},
            "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
            "encoding": {**place, "color": tone, "tooltip": tip},
        },
        {
            "data": {"values": rows},
            "transform": _NAMED,
            "mark": {"type": "text", "align": "left", "dx": 8, "dy": -6, "limit": 220},
            "encoding": {**place, "text": {"field": "name"}},
        },
    ]


_ROW = 24
"""Height of a row, px."""
_OPEN = 100.0
"""Intervals of which one end is so many times the other are not drawn: they tell nothing."""


def draw_intervals(plot: Intervals) -> Spec:
    """Draw estimates with their intervals on one logarithmic axis, cut with arrows at its ends."""
    # The axis ends where what did not lose does, where anything did not.
    positive = [estimate for estimate in plot.rows if estimate.value > 0]
    counting = [estimate for estimate in positive if estimate.tone != "lose"] or positive
    values = [plot.reference, *(estimate.value for estimate in counting)]
    for estimate in counting:
        values += [estimate.low, estimate.high] if _is_drawn(estimate) else []
    ends = fit_axis([(value, "") for value in values], log=True)
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
        {"row": index, "label": bar.label, "note": bar.note, "tone": bar.tone}
        | {"segment": segment, "place": place, "value": length}
        for index, bar in enumerate(chart.bars)
        for place, (segment, length) in enumerate(zip(chart.segments, bar.parts, strict=True))
    ]
    many = len(chart.segments) > 1
    beside = many and not chart.stacked
    y = encode_rows([bar.label for bar in chart.bars])
    longest = max((length for bar in chart.bars for length in bar.parts), default=0.0)
    room: dict[str, Any] = {"domain": [0, 1.3 * longest]} if beside and longest else {}
    x = make_quantity("value", chart.unit, zero=True, **room)
    tone = encode_tones((), [bar.tone for bar in chart.bars])
    if many:
        colours = [colour(f"s{place % SERIES}") for place in range(len(chart.segments))]
        if chart.segments == ("original", "winner"):
            colours = [colour("plain"), colour("winner")]
        scale = {"domain": list(chart.segments), "range": colours}
        legend = {"title": None, "symbolType": "square"}
        tone = {
            "field": "segment",
            "type": "nominal",
            "sort": None,
            "scale": scale,
            "legend": legend,
        }
    encoding: Spec = {"y": y, "x": x, "color": tone}
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


def _write_notes(chart: Bars, x: Spec, y: Spec) -> Spec:
    """Return the notes: inside of long bars, behind short ones and behind bars in groups."""
    lengths = [sum(b.parts) if chart.stacked else max(b.parts, default=0.0) for b in chart.bars]
    longest = max(lengths, default=0.0)
    notes = [
        {"row": n, "end": end, "note": bar.note, "inside": chart.stacked and end > longest / 2}
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
