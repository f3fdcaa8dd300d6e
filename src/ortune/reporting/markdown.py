"""A report as Markdown, for an issue or a pull request."""

import re
from collections.abc import Sequence

from ortune.core.errors import escape_control_chars
from ortune.core.section import (
    Bars,
    Block,
    Chart,
    GraphPair,
    Heading,
    Intervals,
    Lines,
    Pills,
    Scatter,
    Shots,
    Table,
    Text,
    Tiles,
)
from ortune.core.study import Study
from ortune.reporting.beside import build_report_parts
from ortune.reporting.blocks import Part, find_numeric_columns, tabulate_bars

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(study: Study) -> str:
    """Return the whole report."""
    return render_markdown_parts(build_report_parts(study))


def render_markdown_parts(parts: Sequence[Part]) -> str:
    """Return parts as one text; bars become tables, other plots are left out for their tables."""
    texts = [text for part in parts for text in _render_part(part)]
    return escape_control_chars("\n\n".join(texts) + "\n")


def _render_part(part: Part) -> list[str]:
    """Return what is shown of a part, title by title; words about a plot alone go with it."""
    titles: list[list[Block]] = [[]]
    for block in part.blocks:
        if isinstance(block, Heading):
            titles.append([])
        titles[-1].append(block)
    texts: list[str] = []
    for under in titles:
        plotted = any(isinstance(block, Scatter | Intervals | Lines) for block in under)
        if not plotted or any(isinstance(block, Table | Bars) for block in under):
            texts += filter(None, map(_render_block, under))
    return texts


def _render_block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_escape_text(text)}"
        case Text(text, "code"):
            return f"    {' '.join(text.splitlines())}"
        case Text(text, tone):
            return f"**{_escape_text(text)}**" if tone in ("good", "warn") else _escape_text(text)
        case Table():
            return _render_table(block)
        case Bars():
            return _render_table(tabulate_bars(block))
        case Chart(table=table) | GraphPair(table=table):
            return _render_table(table)
        case Pills(pills):
            return "**" + " · ".join(_escape_text(pill.text) for pill in pills) + "**"
        case Tiles(tiles):
            rows = tuple((t.title, t.figure, t.change, t.note) for t in tiles)
            return _render_table(Table(("", "", "", ""), rows))
        case Shots(shots):
            return "\n".join(f"- {_escape_text(f'{s.title}: {s.caption}')}" for s in shots)
        case Scatter() | Intervals() | Lines():
            return ""


def _render_table(table: Table) -> str:
    rules = tuple("---:" if right else "---" for right in find_numeric_columns(table))
    rows = [tuple(map(_escape_text, row)) for row in (table.columns, *table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rules, *rows[1:]))


def _escape_text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
