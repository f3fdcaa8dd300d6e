"""A report as one HTML file that asks nothing of the network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import OrtuneError, escape_control_chars
from ortune.core.section import Bars, Block, Heading, Intervals, Lines, Scatter, Table, Text
from ortune.core.study import Study
from ortune.core.version import __version__
from ortune.reporting import canvas, rows
from ortune.reporting.beside import build_report_parts
from ortune.reporting.blocks import Part, find_numeric_columns
from ortune.reporting.markdown import render_markdown

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
    text = render_markdown(study) if path.suffix.lower() == ".md" else render_html(study)
    originals = [Path(source) for source in study.models.values()]
    with open_output_draft(path, force=force, sources=originals) as draft:
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
    "best": "on the Pareto front",
    "other": "within the accuracy budget",
    "lose": "slower, or outside the accuracy budget",
}


def render_html(study: Study) -> str:
    """Return the whole page; everything that comes from the study is escaped."""
    name = ", ".join(Path(path).name for path in study.job.model.split(", "))
    foot = "All raw measurements are kept in the run's folder (ledger.jsonl)."
    return render_page(name, build_report_parts(study), foot)


def render_page(title: str, parts: Sequence[Part], foot: str = "") -> str:
    """Return parts as a page of their own, everything in them escaped, control characters too."""
    name = escape(title)
    body = "\n".join(_render_section(part) for part in parts)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="ortune {escape(__version__)}">
<title>ortune: {name}</title>
<link rel="icon" href="data:,">
<style>
{_read_stylesheet()}</style>
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
    return escape_control_chars(page)


@cache
def _read_stylesheet() -> str:
    return files("ortune.reporting").joinpath("report.css").read_text(encoding="utf-8")


def _render_section(part: Part) -> str:
    """Write a part; what stands under a folded heading goes into an element that opens."""
    inner, fold = [], ""
    for place, block in enumerate(part.blocks):
        if isinstance(block, Heading):
            inner.append(fold)
            fold = "</details>" if block.folded else ""
        inner.append(_render_block(block))
        if place == 0:  # a link to what is folded opens it
            inner.append(f'<a id="{escape(part.name)}-inside"></a>')
    inside = "\n".join(filter(None, [*inner, fold]))
    return f'<section id="{escape(part.name)}">\n{inside}\n</section>'


def _render_block(block: Block) -> str:
    match block:
        case Heading(text, folded):
            title = f"<h2>{escape(text)}</h2>"
            return f"<details><summary>{title}</summary>" if folded else title
        case Text(text, "code"):
            return f"<pre>{escape(text)}</pre>"
        case Text(text, tone):
            arrows = text.replace(" -> ", " \N{RIGHTWARDS ARROW} ")  # "->" may be broken in two
            inner = escape(arrows)
            for words, name in block.links:
                link = f'<a href="#{escape(name)}-inside">{escape(words)}</a>'
                inner = inner.replace(escape(words), link, 1)
            return f'<p class="{escape(tone)}">{inner}</p>'
        case Table():
            return _render_table(block)
        case Scatter():
            return _render_scatter(block)
        case Bars():
            kinds = [rows.segment_class(block, index) for index in range(len(block.segments))]
            labels = zip(kinds, block.segments, strict=True) if len(block.segments) > 1 else ()
            keys = [_render_key(_BOX.format(kind), name) for kind, name in labels]
            return rows.draw_bars(block) + _render_legend(keys)
        case Intervals():
            shown = {estimate.tone for estimate in block.rows}
            keys = [
                _render_key(rows.draw_legend_mark(tone), text)
                for tone, text in block.legend
                if tone in shown
            ]
            return _render_legend(keys) + rows.draw_intervals(block)
        case Lines():
            keys = [
                _render_key(_DASH.format(canvas.line_class(block, line)), line.name)
                for line in block.lines
                if line.name
            ]
            shown = {mark.tone for mark in block.marks}
            keys += [
                _render_key(_DOT.format("mark " + canvas.mark_class(block, tone)), text)
                for tone, text in block.legend
                if tone in shown
            ]
            return _render_plot(
                (canvas.draw_lines(block), canvas.draw_lines(block, canvas.NARROW)), keys
            )


def _render_table(table: Table) -> str:
    # The class of each column: numbers to the right, sentences wrapped.
    lengths = [max(map(len, column), default=0) for column in zip(*table.rows, strict=True)]
    long = lengths or [0] * len(table.columns)
    kinds = [
        "num" if right else "long" if length > _LONG else ""
        for right, length in zip(find_numeric_columns(table), long, strict=True)
    ]
    head = "".join(
        f"<th{_format_class(kind if kind == 'num' else '')}>{escape(name)}</th>"
        if name
        else "<td></td>"
        for name, kind in zip(table.columns, kinds, strict=True)
    )
    marks = table.marks or ("",) * len(table.rows)
    body = "\n".join(
        f"<tr{_format_class(mark)}>{_render_cells(table, row, kinds)}</tr>"
        for row, mark in zip(table.rows, marks, strict=True)
    )
    return (
        f'<div class="box" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _render_cells(table: Table, row: Sequence[str], kinds: Sequence[str]) -> str:
    """Write cells; each repeats its column's name, which stands before it on a narrow page."""
    return "".join(
        f'<td{_format_class(kind)} data-column="{escape(column)}">{escape(cell)}</td>'
        for cell, kind, column in zip(row, kinds, table.columns, strict=True)
    )


def _format_class(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""


def _render_scatter(plot: Scatter) -> str:
    shown = {p.tone or ("best" if i in plot.front else "other") for i, p in enumerate(plot.points)}
    legend = dict(plot.legend) or _LEGEND
    keys = [_render_key(_DOT.format(kind), text) for kind, text in legend.items() if kind in shown]
    if canvas.has_outliers(plot):
        keys.append("<span>triangles lie beyond the axes</span>")
    return _render_plot(
        (canvas.draw_scatter(plot), canvas.draw_scatter(plot, canvas.NARROW)), keys
    )


def _render_plot(drawings: tuple[str, str], keys: Sequence[str]) -> str:
    """Write a plot for a wide page and for a narrow one: one of them is shown."""
    wide, narrow = drawings
    both = f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
    return f'<div class="plot">{both}</div>{_render_legend(keys)}'


def _render_legend(keys: Sequence[str]) -> str:
    return f'<div class="legend">{"".join(keys)}</div>' if keys else ""


def _render_key(sign: str, text: str) -> str:
    mark = f'<svg viewBox="0 0 12 12" aria-hidden="true">{sign}</svg>'
    return f"<span>{mark}{escape(text)}</span>"
