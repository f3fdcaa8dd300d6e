"""A scatter plot as a file of its own: SVG with its colours in it, or the same as PNG."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadSettings, escape_control_chars
from ortune.core.section import Scatter
from ortune.reporting.canvas import WIDE, draw_scatter

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SUFFIXES = (".svg", ".png", ".html", ".htm")
_SCALE = 2
"""Pixels of a PNG to one of the plot."""
_INK, _SOFT, _LINE, _CARD = "#1a1f29", "#5b6472", "#dde1e7", "#ffffff"
_MARK, _GOOD, _LOSE = "#2457d6", "#0b7a4b", "#6d7482"
STYLE: Mapping[str, Mapping[str, str]] = {
    "grid": {"stroke": _LINE, "fill": "none"},
    "axis": {"stroke": _SOFT, "fill": "none"},
    "error": {"stroke": "#a7bcef", "fill": "none"},
    "error win": {"stroke": "#9dcab7", "fill": "none"},
    "error original": {"stroke": "#b5b9c1", "fill": "none"},
    "other": {"fill": _MARK},
    "best": {"fill": _MARK},
    "win": {"fill": _GOOD},
    "lose": {"fill": _LOSE},
    "original": {"fill": _CARD, "stroke": _INK},
    "tick": {"fill": _SOFT},
    "title": {"fill": _INK},
    "label": {"fill": _INK},
}
"""Class of a drawn thing -> its colours, on white."""


def require_plot_suffix(path: Path) -> None:
    """Refuse a name that no plot is written under.

    Raises:
        BadSettings: It ends in something else, or PNG cannot be drawn here.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise BadSettings(
            f"cannot draw a plot as '{path.name}'", fix="end it in .svg, .png or .html"
        )
    if path.suffix.lower() == ".png":
        _require_pillow()


def write_plot(plot: Scatter, path: Path, *, force: bool = False) -> Path:
    """Write the plot as SVG or PNG by the end of its name.

    Raises:
        OrtuneError: The path is taken, or PNG cannot be drawn here.
    """
    with open_output_draft(path, force=force) as draft:
        if path.suffix.lower() == ".png":
            draft.write_bytes(render_png(plot))
        else:
            draft.write_text(escape_control_chars(render_svg(plot)), encoding="utf-8")
    return path


def render_svg(plot: Scatter) -> str:
    """Return the plot as a file: its size, its colours on white, and a legend."""
    rules = "\n".join(
        f"{_format_selector(name)} {{ {_format_declarations(name)} }}" for name in STYLE
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE.width}" height="{WIDE.height}" '
    fonts = "text { font: 11px sans-serif } .title { font-size: 12px }"
    anchors = ".middle { text-anchor: middle } .end { text-anchor: end }"
    style = f"<style>\n{fonts} {anchors}\n{rules}\n</style>"
    back = f'<rect width="{WIDE.width}" height="{WIDE.height}" fill="{_CARD}"/>'
    body = draw_scatter(plot)
    first, _, content = body.partition("\n")
    return "\n".join([head + first.removeprefix("<svg "), style, back, content]) + "\n"


def _format_selector(name: str) -> str:
    return "".join(f".{word}" for word in name.split())


def _format_declarations(name: str) -> str:
    return "; ".join(f"{key}: {value}" for key, value in STYLE[name].items())


def render_png(plot: Scatter) -> bytes:
    """Return the same drawing as PNG.

    Raises:
        BadSettings: Pillow is not installed.
    """
    _require_pillow()
    from PIL import Image, ImageDraw

    size = (WIDE.width * _SCALE, WIDE.height * _SCALE)
    image = Image.new("RGB", size, _CARD)
    draw = ImageDraw.Draw(image)
    for element in ElementTree.fromstring(draw_scatter(plot)):
        _draw_element(draw, element)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _require_pillow() -> None:
    if find_spec("PIL") is None:
        raise BadSettings(
            "a plot is drawn as PNG by Pillow, which is not installed",
            fix="end its name in .svg, or pip install pillow",
        )


def _find_style(element: ElementTree.Element) -> Mapping[str, str]:
    words = (element.get("class") or "").split()
    attributes: dict[str, str] = {}
    for name, style in STYLE.items():
        if set(name.split()) <= set(words):
            attributes |= style
    return attributes


def _draw_element(draw: ImageDraw, element: ElementTree.Element) -> None:
    style = _find_style(element)
    fill = None if style.get("fill", "none") == "none" else style["fill"]
    stroke = style.get("stroke")
    match element.tag:
        case "circle":
            x, y, r = (_SCALE * float(element.get(name, "0")) for name in ("cx", "cy", "r"))
            draw.ellipse((x - r, y - r, x + r, y + r), fill, stroke, _SCALE)
        case "path":
            for line in _parse_lines(element.get("d") or ""):
                draw.line(line, stroke or fill, _SCALE)
        case "text":
            _draw_text(draw, element, fill or _INK)


def _draw_text(draw: ImageDraw, element: ElementTree.Element, fill: str) -> None:
    from PIL import ImageFont

    words = (element.get("class") or "").split()
    anchor = "ms" if "middle" in words else "rs" if "end" in words else "ls"
    font = ImageFont.load_default((12 if "title" in words else 11) * _SCALE)
    at = (_SCALE * float(element.get("x", "0")), _SCALE * float(element.get("y", "0")))
    draw.text(at, element.text or "", fill, font, anchor)


def _parse_lines(path: str) -> Iterator[list[tuple[float, float]]]:
    """Yield the straight lines of a path of absolute M, H and V and relative h and l, scaled."""
    line: list[tuple[float, float]] = []
    x = y = 0.0
    for word, text in re.findall(r"([MHVhlz])([^MHVhlz]*)", path):
        numbers = [float(token) for token in text.split()]
        if word == "M":
            if len(line) > 1:
                yield line
            (x, y), line = numbers, []
        elif word == "z":
            line.append(line[0])
            continue
        elif word in "HV":
            x, y = (numbers[0], y) if word == "H" else (x, numbers[0])
        else:
            x, y = x + numbers[0], y + (numbers[1] if word == "l" else 0.0)
        line.append((_SCALE * x, _SCALE * y))
    if len(line) > 1:
        yield line
