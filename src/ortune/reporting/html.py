"""A report as one HTML file that asks nothing of the network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from ortune.core.section import Bars, Block, Heading, Lines, Scatter, Table, Text
from ortune.core.study import Study
from ortune.core.version import __version__
from ortune.reporting import bars, lines, scatter
from ortune.reporting.beside import profiles
from ortune.reporting.blocks import Part, gather, numeric

_LONG = 32
"""Letters above which a column's cells may wrap."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_DOT = '<circle class="{}" cx="6" cy="6" r="4.5"/>'
_BOX = '<rect class="bar {}" x="1" y="1" width="10" height="10"/>'
_DASH = '<path class="line {}" d="M0 6h12"/>'
_LEGEND = {
    "win": "winner",
    "original": "original",
    "best": "on the front",
    "other": "within the budget",
    "lose": "slower, or outside the budget",
}


def render(study: Study) -> str:
    """Return the whole page; everything that comes from the study is escaped."""
    name = ", ".join(Path(one).name for one in study.job.model.split(", "))
    foot = "Every number of the search comes from the run's ledger, which keeps the raw samples."
    return page(name, (*gather(study), *profiles(study)), foot)


def page(title: str, parts: Sequence[Part], foot: str = "") -> str:
    """Return parts as a page of their own, everything in them escaped."""
    name = escape(title)
    body = "\n".join(_section(part) for part in parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="ortune {escape(__version__)}">
<title>ortune: {name}</title>
<link rel="icon" href="data:,">
<style>
{_style()}</style>
</head>
<body>
<main>
<header><p>ortune {escape(__version__)}</p><h1>{name}</h1></header>
{body}
<footer>{escape(foot)}</footer>
</main>
</body>
</html>
"""


@cache
def _style() -> str:
    return files("ortune.reporting").joinpath("report.css").read_text(encoding="utf-8")


def _section(part: Part) -> str:
    inner = "\n".join(_block(block) for block in part.blocks)
    return f'<section id="{escape(part.name)}">\n{inner}\n</section>'


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Text(text, "code"):
            return f"<pre>{escape(text)}</pre>"
        case Text(text, tone):
            arrows = text.replace(" -> ", " \N{RIGHTWARDS ARROW} ")  # "->" may be broken in two
            return f'<p class="{escape(tone)}">{escape(arrows)}</p>'
        case Table():
            return _table(block)
        case Scatter():
            return _scatter(block)
        case Bars():
            return _bars(block)
        case Lines():
            return _lines(block)


def _table(table: Table) -> str:
    kinds = _kinds(table)
    head = _cells("th", table.columns, [kind if kind == "num" else "" for kind in kinds])
    marks = table.marks or ("",) * len(table.rows)
    rows = "\n".join(
        f"<tr{_named(mark)}>{_cells('td', row, kinds)}</tr>"
        for row, mark in zip(table.rows, marks, strict=True)
    )
    return (
        f'<div class="box" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _kinds(table: Table) -> list[str]:
    """Return the class of each column: numbers to the right, sentences wrapped."""
    lengths = [max(map(len, column), default=0) for column in zip(*table.rows, strict=True)]
    long = lengths or [0] * len(table.columns)
    return [
        "num" if right else "long" if length > _LONG else ""
        for right, length in zip(numeric(table), long, strict=True)
    ]


def _cells(tag: str, row: Sequence[str], kinds: Sequence[str]) -> str:
    return "".join(
        f"<{tag}{_named(kind)}>{escape(cell)}</{tag}>"
        for cell, kind in zip(row, kinds, strict=True)
    )


def _named(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""


def _scatter(plot: Scatter) -> str:
    shown = {p.tone or ("best" if i in plot.front else "other") for i, p in enumerate(plot.points)}
    keys = [_key(_DOT.format(kind), text) for kind, text in _LEGEND.items() if kind in shown]
    if scatter.outside(plot):
        keys.append("<span>triangles lie beyond the axes</span>")
    return _plot(scatter.svg(plot), keys)


def _bars(chart: Bars) -> str:
    kinds = [bars.segment_class(chart, index) for index in range(len(chart.segments))]
    named = zip(kinds, chart.segments, strict=True) if len(chart.segments) > 1 else ()
    return _plot(bars.svg(chart), [_key(_BOX.format(kind), name) for kind, name in named])


def _lines(chart: Lines) -> str:
    keys = [
        _key(_DASH.format(lines.line_class(chart, line)), line.name)
        for line in chart.lines
        if line.name
    ]
    shown = {mark.tone for mark in chart.marks}
    keys += [
        _key(_DOT.format("mark " + lines.mark_class(chart, tone)), text)
        for tone, text in chart.legend
        if tone in shown
    ]
    return _plot(lines.svg(chart), keys)


def _plot(drawn: str, keys: Sequence[str]) -> str:
    legend = f'<div class="legend">{"".join(keys)}</div>' if keys else ""
    return f'<div class="box plot" tabindex="0">{drawn}</div>{legend}'


def _key(sign: str, text: str) -> str:
    mark = f'<svg viewBox="0 0 12 12" aria-hidden="true">{sign}</svg>'
    return f"<span>{mark}{escape(text)}</span>"
