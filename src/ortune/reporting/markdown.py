"""A report as Markdown, for an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ortune.core.section import Bars, Block, Heading, Lines, Scatter, Table, Text
from ortune.core.study import Study
from ortune.reporting.beside import profiles
from ortune.reporting.blocks import Part, gather, numeric, tabled

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown(study: Study) -> str:
    """Return the whole report."""
    return written((*gather(study), *profiles(study)))


def written(parts: Sequence[Part]) -> str:
    """Return parts as one text; bars become tables, other plots are left out for their tables."""
    found = [_block(block) for part in parts for block in part.blocks]
    return "\n\n".join(text for text in found if text) + "\n"


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
        case Scatter() | Lines():
            return ""


def _table(table: Table) -> str:
    rules = tuple("---:" if right else "---" for right in numeric(table))
    rows = [tuple(map(_plain, row)) for row in (table.columns, *table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rules, *rows[1:]))


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
