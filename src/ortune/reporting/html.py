"""A report as one HTML file that asks nothing of the network."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from ortune import __version__
from ortune.core.section import Block, Heading, Scatter, Table, Text
from ortune.core.study import Study
from ortune.reporting.blocks import Part, gather, numeric
from ortune.reporting.scatter import outside, svg

_LONG = 32
"""Letters above which a cell may wrap."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_LEGEND = {
    "win": "winner",
    "original": "original",
    "best": "on the front",
    "other": "within the budget",
    "lose": "slower, or outside the budget",
}


def render(study: Study) -> str:
    """Return the whole page; everything that comes from the study is escaped."""
    name = escape(", ".join(Path(one).name for one in study.job.model.split(", ")))
    body = "\n".join(_section(part) for part in gather(study))
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
<footer>Every number comes from the run's ledger, which keeps the raw samples.</footer>
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
            return f'<p class="{escape(tone)}">{escape(text)}</p>'
        case Table():
            return _table(block)
        case Scatter():
            return _scatter(block)


def _table(table: Table) -> str:
    right = numeric(table)
    head = "".join(
        f'<th scope="col"{_class(is_right, False)}>{escape(name)}</th>'
        for name, is_right in zip(table.columns, right, strict=True)
    )
    marks = table.marks or ("",) * len(table.rows)
    rows = "\n".join(
        f"<tr{_named(mark)}>{_cells(row, right)}</tr>"
        for row, mark in zip(table.rows, marks, strict=True)
    )
    return (
        f'<div class="box" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cells(row: tuple[str, ...], right: tuple[bool, ...]) -> str:
    return "".join(
        f"<td{_class(is_right, len(cell) > _LONG)}>{escape(cell)}</td>"
        for cell, is_right in zip(row, right, strict=True)
    )


def _class(right: bool, long: bool) -> str:
    return _named("num" if right else "long" if long else "")


def _named(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""


def _scatter(plot: Scatter) -> str:
    shown = {p.tone or ("best" if i in plot.front else "other") for i, p in enumerate(plot.points)}
    keys = "".join(
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="{kind}" cx="6" cy="6"'
        f' r="4.5"/></svg>{text}</span>'
        for kind, text in _LEGEND.items()
        if kind in shown
    )
    if outside(plot):
        keys += "<span>triangles lie beyond the axes</span>"
    return f'<div class="box plot" tabindex="0">{svg(plot)}</div><div class="legend">{keys}</div>'
