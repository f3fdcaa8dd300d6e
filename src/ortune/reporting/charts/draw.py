"""Charts as Vega-Lite specifications, which a page, a notebook and a file draw alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadSettings, escape_control_chars
from ortune.core.section import Bars, Chart, Intervals, Lines, Plot, Scatter
from ortune.reporting.charts.points import draw_lines, draw_scatter
from ortune.reporting.charts.rows import draw_bars, draw_intervals
from ortune.reporting.charts.style import LIGHT, Spec, colour

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


def draw_for_file(plot: Plot, width: int = 760) -> Spec:
    """Return a chart with a width and colours of its own, for where no page surrounds it."""
    fit = {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}}
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
