"""A report as Markdown, for an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ortune.core.section import Bars, Block, Heading, Intervals, Lines, Scatter, Table, Text
from ortune.core.study import Study
from ortune.reporting.beside import whole
from ortune.reporting.blocks import Part, numeric, tabled

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown(study: Study) -> str:
    """Return the whole report."""
    return written(whole(study))


def written(parts: Sequence[Part]) -> str:
    """Return parts as one text; bars become tables, other plots are left out for their tables."""
    found = [text for part in parts for text in _part(part)]
    return "\n\n".join(found) + "\n"


def _part(part: Part) -> list[str]:
    """Return what is shown of a part, title by title; words about a plot alone go with it."""
    titles: list[list[Block]] = [[]]
    for block in part.blocks:
        if isinstance(block, Heading):
            titles.append([])
        titles[-1].append(block)
    return [text for under in titles if _told(under) for block in under if (text := _block(block))]


def _told(blocks: Sequence[Block]) -> bool:
    plotted = any(isinstance(block, Scatter | Intervals | Lines) for block in blocks)
    return not plotted or any(isinstance(block, Table | Bars) for block in blocks)


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_plain(text)}"
        case Text(text, "code"):
            return f"    {' '.join(text.splitlines())}"
        case Text(text, tone):
            return f"**{_plain(text)}**" if tone in ("good", "warn") else _plain(text)
        case Table():
            return _table(block)
        case Bars():
            return _table(tabled(block))
        case Scatter() | Intervals() | Lines():
            return ""


def _table(table: Table) -> str:
    rules = tuple("---:" if right else "---" for right in numeric(table))
    rows = [tuple(map(_plain, row)) for row in (table.columns, *table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rules, *rows[1:]))


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
