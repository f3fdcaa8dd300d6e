"""Points and lines in a plane as Vega-Lite specifications."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ortune.core.section import Line, Lines, Point, Scatter
from ortune.reporting.charts.style import (
    SERIES,
    TONES,
    Spec,
    colour,
    encode_tones,
    fit_axis,
    list_texts,
    make_quantity,
    make_tip,
    shorten_label,
)

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
        layers.append(_join_points(places, x, y))
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
    encoding = {
        "x": x,
        "y": y,
        "color": tone,
        "size": size,
        "shape": {"field": "inside", "legend": None, "scale": shapes},
        "tooltip": tip,
    }
    layers: list[Spec] = [
        {"transform": inside, "mark": rule, "encoding": span | {"color": tone}} for span in spans
    ]
    return [*layers, {"mark": {**mark, "stroke": colour("card")}, "encoding": encoding}]


def _join_points(points: Sequence[Point], x: Spec, y: Spec) -> Spec:
    rows = [{"x": p.x, "y": p.y, "order": place} for place, p in enumerate(points)]
    return {
        "data": {"values": rows},
        "mark": {"type": "line", "strokeDash": [4, 3], "color": colour("soft")},
        "encoding": {"x": x, "y": y, "order": {"field": "order"}},
    }


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
    encoding: Spec = {
        "x": x,
        "y": y,
        "order": {"field": "order"},
        "color": _encode_series(chart),
        "tooltip": make_tip([("name", "line")], figures),
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


def _encode_series(chart: Lines) -> Spec:
    """Return the colour of the field ``line``, with a legend of the lines that have names."""
    names = [line.name for line in chart.lines]
    legend: Spec | None = None
    if any(names) and not chart.ends:
        legend = {
            "title": None,
            "symbolType": "stroke",
            "values": [index for index, name in enumerate(names) if name],
            "labelExpr": f"{list_texts(names)}[datum.value]",
        }
    colours = [_name_line_colour(chart, line) for line in chart.lines]
    scale = {"domain": list(range(len(names))), "range": colours}
    return {"field": "line", "type": "nominal", "scale": scale, "legend": legend}


def _name_line_colour(chart: Lines, line: Line) -> str:
    """Return the colour of a line: of its tone, or the next one."""
    if line.tone:
        return colour(TONES.get(line.tone, "s0"))
    plain = [other for other in chart.lines if not other.tone]
    return colour(f"s{next(i for i, other in enumerate(plain) if other is line) % SERIES}")


def _draw_marks(
    chart: Lines, marks: Sequence[Point], place: Spec, tip: Sequence[Spec]
) -> list[Spec]:
    rows = [
        {
            "x": mark.x,
            "y": mark.y,
            "label": mark.label,
            "tone": mark.tone,
            "name": shorten_label(mark.label) if index < chart.named else "",
        }
        for index, mark in enumerate(marks)
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
