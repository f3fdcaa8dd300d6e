"""A report as one HTML file that asks nothing of the network."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import OrtuneError, escape_control_chars
from ortune.core.section import (
    Bars,
    Block,
    Chart,
    GraphPair,
    Heading,
    Intervals,
    Lines,
    Pills,
    Plot,
    Scatter,
    Shot,
    Shots,
    Table,
    Text,
    Tile,
    Tiles,
)
from ortune.core.study import Study
from ortune.core.version import __version__
from ortune.reporting.beside import build_report_parts
from ortune.reporting.blocks import Part, find_numeric_columns, tabulate_bars
from ortune.reporting.charts.draw import draw_chart, render_svg
from ortune.reporting.compared import build_compared_parts
from ortune.reporting.markdown import render_markdown_parts

_FORMATS = (".html", ".htm", ".md")


def report(
    study: Study,
    path: str | Path,
    force: bool = False,
    *,
    static: bool = False,
    no_samples: bool = False,
    other: Study | None = None,
) -> Path:
    """Write the report as one offline file: HTML, or Markdown if the name ends in .md.

    Args:
        other: Another study: the page compares the two.
        force: Replace an existing file. An original model is never replaced.
        static: Without script, for mail: charts are pictures, drawn by vl-convert-python; without
            that, tables alone.
        no_samples: Leave out the samples whose answers changed most.

    Raises:
        OrtuneError: The path is taken, has another ending, or cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise OrtuneError(
            f"cannot write a report as '{path.name}'", fix=f"end it in {' or '.join(_FORMATS)}"
        )
    title, about = name_study(study), describe_job(study)
    if other is None:
        parts = build_report_parts(study)
    else:
        (title, parts), about = build_compared_parts(study, other), ""
    if no_samples:
        parts = tuple(
            replace(part, blocks=tuple(b for b in part.blocks if not isinstance(b, Shots)))
            for part in parts
        )
    markdown = path.suffix.lower() == ".md"
    text = (
        render_markdown_parts(parts)
        if markdown
        else render_page(title, parts, FOOT, about, static)
    )
    originals = [Path(source) for source in study.models.values()]
    with open_output_draft(path, force=force, sources=originals) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


FOOT = "All raw measurements are kept in the run's folder (ledger.jsonl)."
_LONG = 32
"""Letters above which a column's cells may wrap."""
_SORTED = 12
"""Rows above which a table can be sorted and filtered."""
_SCRIPTS = ("vega/vega.min.js", "vega/vega-lite.min.js", "vega/vega-interpreter.min.js", "page.js")


def render_html(study: Study) -> str:
    """Return the whole page of a study; everything that comes from it is escaped."""
    return render_page(name_study(study), build_report_parts(study), FOOT, describe_job(study))


def name_study(study: Study) -> str:
    """Return the names of a study's models, by comma."""
    return ", ".join(Path(path).name for path in study.job.model.split(", "))


def describe_job(study: Study) -> str:
    """Say on what and how it was measured, in one line."""
    job = study.job
    versions = [f"{name} {version}" for name, version in job.versions.items() if name != "python"]
    emulated = [f"emulated by {job.emulated}"] * bool(job.emulated)
    return " · ".join(
        [job.machine.get("cpu", ""), *emulated, *versions[:3], str(job.workload)]
    ).strip(" ·")


def render_page(
    title: str,
    parts: Sequence[Part],
    foot: str = "",
    about: str = "",
    static: bool = False,
    live: bool = False,
) -> str:
    """Return parts as a page of their own, everything in them escaped, control characters too.

    Args:
        static: Without script, the charts drawn as pictures.
        live: A frame that gets its parts from the server that it came from.
    """
    name = escape(title)
    body = "\n".join(render_section(part, static) for part in parts)
    drawn = live or any(isinstance(block, Plot) for part in parts for block in part.blocks)
    needed = (_SCRIPTS if drawn else _SCRIPTS[-1:]) + ("live.js",) * live
    scripts = [] if static else [_read_file(script) for script in needed]
    hashes = " ".join(f"'sha256-{_hash_script(script)}'" for script in scripts) or "'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    policy += "; connect-src 'self'" if live else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="ortune {escape(__version__)}">
<title>ortune: {escape_control_chars(name)}</title>
<link rel="icon" href="data:,">
<style>
{_read_file("report.css")}</style>
</head>
<body>
<main>
<header><h1>{escape_control_chars(name)}</h1><p>{escape_control_chars(escape(about))}</p></header>
{body}
<footer>{escape(foot)} Written by ortune {escape(__version__)}.</footer>
</main>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


@cache
def _read_file(name: str) -> str:
    return files("ortune.reporting").joinpath(name).read_text(encoding="utf-8")


@cache
def _hash_script(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render_section(part: Part, static: bool = False) -> str:
    """Write a part, charts as pictures if `static`; what a folded heading holds opens."""
    inner, fold, draw = [], "", _embed_picture if static else _embed_chart
    for place, block in enumerate(part.blocks):
        if isinstance(block, Heading):
            inner.append(fold)
            fold = "</details>" if block.folded else ""
        inner.append(_render_block(block, draw))
        if place == 0:  # a link to what is folded opens it
            inner.append(f'<a id="{escape(part.name)}-inside"></a>')
    inside = "\n".join(filter(None, [*inner, fold]))
    wide = f' class="of-{part.columns}"' if part.columns < 12 else ""
    section = f'<section id="{escape(part.name)}"{wide}>\n{inside}\n</section>'
    return escape_control_chars(section)


def _render_block(block: Block, draw: Callable[[Plot], str]) -> str:
    match block:
        case Heading(text, folded):
            title = f"<h2>{escape(text)}</h2>"
            return f"<details><summary>{title}</summary>" if folded else title
        case Text(text, "code"):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Text(text, tone):
            inner = _escape_text(text)
            for words, name in block.links:
                link = f'<a href="#{escape(name)}-inside">{escape(words)}</a>'
                inner = inner.replace(escape(words), link, 1)
            return f'<p class="{escape(tone)}">{inner}</p>'
        case Table():
            return _render_table(block)
        case Pills(pills):
            marks = (f'<li class="{escape(p.tone)}">{escape(p.text)}</li>' for p in pills)
            return f'<ul class="pills">{"".join(marks)}</ul>'
        case Tiles(tiles):
            return f'<div class="tiles">{"".join(map(_render_tile, tiles))}</div>'
        case Shots(shots):
            return f'<div class="shots">{"".join(map(_render_shot, shots))}</div>'
        case GraphPair(shown, table):
            return (
                f'<div class="graph">{_embed_json(shown)}</div>' if (draw is _embed_chart) else ""
            ) + _fold_figures(table)
        case Scatter() | Intervals() | Lines() | Bars() | Chart():
            return draw(block) + _render_figures(block)


def _render_figures(plot: Plot) -> str:
    """Return the figures of a chart that no table beside it holds."""
    match plot:
        case Chart(table=table):
            return _fold_figures(table)
        case Bars():
            return _fold_figures(tabulate_bars(plot))
        case _:
            return ""


def _fold_figures(table: Table) -> str:
    """Return a chart's figures for whoever does not see it."""
    figures = _render_table(table)
    return f'<details class="figures"><summary>figures</summary>{figures}</details>'


def _embed_chart(plot: Plot) -> str:
    """Write a chart's specification for the page's script."""
    spec = draw_chart(plot)
    text = _embed_json(spec)
    label = escape(spec.get("description", "chart"), quote=True)
    drawn = f'<div class="drawn" role="img" aria-label="{label}"></div>'
    return f'<div class="chart">{text}{drawn}</div>'


def _embed_json(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _embed_picture(plot: Plot) -> str:
    """Draw a chart; where nothing here can, say so."""
    label = escape(draw_chart(plot).get("description", "chart"), quote=True)
    try:
        svg = render_svg(plot)
    except OrtuneError as error:
        return f'<p class="warn">No chart of {label}: {escape(error.what)}.</p>'
    data = base64.b64encode(svg.encode()).decode()
    return f'<img class="picture" alt="{label}" src="data:image/svg+xml;base64,{data}">'


def _render_tile(tile: Tile) -> str:
    strip = ""
    if tile.span:
        low, high = tile.span
        first, last = min(low, 1.0) * 0.9, max(high, 1.0) * 1.1
        at, start, end = (100 * (x - first) / (last - first) for x in (1.0, low, high))
        strip = (
            f'<svg class="strip" aria-hidden="true"><rect width="100%" height="6" y="4"/>'
            f'<rect class="span" x="{start:.1f}%" width="{max(end - start, 1):.1f}%" '
            f'height="6" y="4"/><rect class="mark" x="{at:.1f}%" width="2" height="14"/></svg>'
        )
    return (
        f'<div class="tile {escape(tile.tone)}"><p>{escape(tile.title)}</p>'
        f"<strong>{escape(tile.figure)}</strong><p>{_escape_text(tile.change)}</p>{strip}"
        f"<small>{_escape_text(tile.note)}</small></div>"
    )


def _render_shot(shot: Shot) -> str:
    data = base64.b64encode(shot.image).decode()
    image = f'<img alt="" src="data:image/png;base64,{data}">' if shot.image else ""
    return (
        f'<figure class="{escape(shot.tone)}">{image}<figcaption><b>{escape(shot.title)}</b>'
        f"{_escape_text(shot.caption)}</figcaption></figure>"
    )


def _escape_text(text: str) -> str:
    """Escape a text, its arrows as one character: "->" may be broken in two."""
    return escape(text.replace(" -> ", " \N{RIGHTWARDS ARROW} "))


def _render_table(table: Table) -> str:
    # The class of each column: numbers to the right, sentences wrapped.
    lengths = [max(map(len, column), default=0) for column in zip(*table.rows, strict=True)]
    long = lengths or [0] * len(table.columns)
    kinds = [
        "num" if right else "long" if length > _LONG else ""
        for right, length in zip(find_numeric_columns(table), long, strict=True)
    ]
    sorts = len(table.rows) > _SORTED
    head = "".join(
        _render_head(name, "num" if kind == "num" else "", sorts)
        for name, kind in zip(table.columns, kinds, strict=True)
    )
    marks = table.marks or ("",) * len(table.rows)
    body = "\n".join(
        f"<tr{_format_class(mark)}>{_render_cells(table, row, kinds)}</tr>"
        for row, mark in zip(table.rows, marks, strict=True)
    )
    search = '<input type="search" placeholder="filter" aria-label="filter rows" hidden>'
    return (
        f'{search if sorts else ""}<div class="box" tabindex="0">'
        f"<table{_format_class('sorts' if sorts else '')}>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _render_head(name: str, kind: str, sorts: bool) -> str:
    if not name:
        return "<td></td>"
    text = f'<button type="button">{escape(name)}</button>' if sorts else escape(name)
    return f"<th{_format_class(kind)}>{text}</th>"


def _render_cells(table: Table, row: Sequence[str], kinds: Sequence[str]) -> str:
    """Write cells; each repeats its column's name, which stands before it on a narrow page."""
    return "".join(
        f'<td{_format_class(kind)} data-column="{escape(column)}">{escape(cell)}</td>'
        for cell, kind, column in zip(row, kinds, table.columns, strict=True)
    )


def _format_class(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""
