"""A report as one HTML file that asks nothing of the network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from ortune.core.atomic_write import replacing
from ortune.core.errors import OrtuneError
from ortune.core.section import Bars, Block, Heading, Intervals, Lines, Scatter, Table, Text
from ortune.core.study import Study
from ortune.core.version import __version__
from ortune.reporting import canvas, rows
from ortune.reporting.beside import whole
from ortune.reporting.blocks import Part, numeric
from ortune.reporting.markdown import markdown

_FORMATS = (".html", ".htm", ".md")


def report(study: Study, path: str | Path, force: bool = False) -> Path:
    """Write the report as one offline file: HTML, or Markdown if the name ends in .md.

    Args:
        force: Replace an existing file. An original model is never replaced.

    Raises:
        OrtuneError: The path is taken, has another ending, or cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise OrtuneError(
            f"cannot write a report as '{path.name}'", fix=f"end it in {' or '.join(_FORMATS)}"
        )
    text = markdown(study) if path.suffix.lower() == ".md" else render(study)
    originals = [Path(source) for source in study.models.values()]
    with replacing(path, force=force, sources=originals) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


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
    return page(name, whole(study), foot)


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
    """Write a part; what stands under a folded heading goes into an element that opens."""
    inner, fold = [], ""
    for block in part.blocks:
        if isinstance(block, Heading):
            inner.append(fold)
            fold = "</details>" if block.folded else ""
        inner.append(_block(block))
    inside = "\n".join(filter(None, [*inner, fold]))
    return f'<section id="{escape(part.name)}">\n{inside}\n</section>'


def _block(block: Block) -> str:
    match block:
        case Heading(text, folded):
            title = f"<h2>{escape(text)}</h2>"
            return f"<details><summary>{title}</summary>" if folded else title
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
            kinds = [rows.segment_class(block, index) for index in range(len(block.segments))]
            named = zip(kinds, block.segments, strict=True) if len(block.segments) > 1 else ()
            keys = [_key(_BOX.format(kind), name) for kind, name in named]
            return rows.bars(block) + _legend(keys)
        case Intervals():
            shown = {one.tone for one in block.rows}
            keys = [_key(rows.sign(tone), text) for tone, text in block.legend if tone in shown]
            return _legend(keys) + rows.intervals(block)
        case Lines():
            keys = [
                _key(_DASH.format(canvas.line_class(block, line)), line.name)
                for line in block.lines
                if line.name
            ]
            shown = {mark.tone for mark in block.marks}
            keys += [
                _key(_DOT.format("mark " + canvas.mark_class(block, tone)), text)
                for tone, text in block.legend
                if tone in shown
            ]
            return _plot((canvas.lines_svg(block), canvas.lines_svg(block, canvas.NARROW)), keys)


def _table(table: Table) -> str:
    # The class of each column: numbers to the right, sentences wrapped.
    lengths = [max(map(len, column), default=0) for column in zip(*table.rows, strict=True)]
    long = lengths or [0] * len(table.columns)
    kinds = [
        "num" if right else "long" if length > _LONG else ""
        for right, length in zip(numeric(table), long, strict=True)
    ]
    head = "".join(
        f"<th{_named(kind if kind == 'num' else '')}>{escape(name)}</th>" if name else "<td></td>"
        for name, kind in zip(table.columns, kinds, strict=True)
    )
    marks = table.marks or ("",) * len(table.rows)
    body = "\n".join(
        f"<tr{_named(mark)}>{_cells(table, row, kinds)}</tr>"
        for row, mark in zip(table.rows, marks, strict=True)
    )
    return (
        f'<div class="box" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _cells(table: Table, row: Sequence[str], kinds: Sequence[str]) -> str:
    """Write cells; each repeats its column's name, which stands before it on a narrow page."""
    return "".join(
        f'<td{_named(kind)} data-column="{escape(column)}">{escape(cell)}</td>'
        for cell, kind, column in zip(row, kinds, table.columns, strict=True)
    )


def _named(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""


def _scatter(plot: Scatter) -> str:
    shown = {p.tone or ("best" if i in plot.front else "other") for i, p in enumerate(plot.points)}
    legend = dict(plot.legend) or _LEGEND
    keys = [_key(_DOT.format(kind), text) for kind, text in legend.items() if kind in shown]
    if canvas.outside(plot):
        keys.append("<span>triangles lie beyond the axes</span>")
    return _plot((canvas.scatter_svg(plot), canvas.scatter_svg(plot, canvas.NARROW)), keys)


def _plot(drawn: tuple[str, str], keys: Sequence[str]) -> str:
    """Write a plot for a wide page and for a narrow one: one of them is shown."""
    wide, narrow = drawn
    both = f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
    return f'<div class="plot">{both}</div>{_legend(keys)}'


def _legend(keys: Sequence[str]) -> str:
    return f'<div class="legend">{"".join(keys)}</div>' if keys else ""


def _key(sign: str, text: str) -> str:
    mark = f'<svg viewBox="0 0 12 12" aria-hidden="true">{sign}</svg>'
    return f"<span>{mark}{escape(text)}</span>"
