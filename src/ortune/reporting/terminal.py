"""A report for the terminal: readable at 80 columns and without colour."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text as Line

from ortune.core.section import (
    Bars,
    Block,
    Heading,
    Intervals,
    Lines,
    Scatter,
    Table,
    Text,
)
from ortune.core.study import Study
from ortune.reporting.blocks import Part, gather, numeric
from ortune.reporting.canvas import middle_cut

_GAP = 2
_INDENT = 4
_NARROWEST = 9
_WORTH = 24
"""Columns that the last column needs to stay in its row, if it is longer than that."""
_PIECES = re.compile(r"[^(,+=@/-]+[(,+=@/-]*|[(,+=@/-]+")
"""Where plans and paths may be broken."""
_TONES = {"good": "bold green", "warn": "bold yellow", "code": "cyan", "plain": ""}
_SHADES = "█▒░▓"
_MARKS = {"win": "bold green", "lose": "dim"}


def terminal(study: Study) -> list[RenderableType]:
    """Return what a console prints; widths are chosen when it prints."""
    return printed(gather(study, terminal=True))


def printed(parts: Sequence[Part]) -> list[RenderableType]:
    """Return what a console prints of some parts; plots but bars are left out for their tables."""
    return [item for part in parts for block in part.blocks for item in _block(block)]


def _block(block: Block) -> Iterator[RenderableType]:
    match block:
        case Heading(text):
            yield Line(f"\n{text}", style="bold")
        case Text(text, "code"):
            yield Line(f"  {text}", style=_TONES["code"], no_wrap=True, overflow="ignore")
        case Text(text, tone):
            yield Line(text, style=_TONES.get(tone, ""))
        case Table():
            yield FittedTable(block)
        case Bars():
            yield Chart(block)
        case Scatter() | Intervals() | Lines():
            return


@dataclass(frozen=True)
class FittedTable:
    """A table that fits: when it is too wide its last column hangs below each row."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the table out for the console's width."""
        table, width = self.table, options.max_width
        natural = _widths(table, len(table.columns))
        left = width - sum(natural[:-1]) - _GAP * (len(natural) - 1)
        hang = len(natural) > 1 and left < min(natural[-1], _WORTH)
        shown = len(natural) - hang
        widths = _shrunk(natural[:shown], width)
        right = numeric(table)[:shown]
        if any(table.columns):
            yield from _row(table.columns[:shown], widths, right, "bold")
            yield Line("─" * min(width, sum(widths) + _GAP * (shown - 1)), style="dim")
        marks = table.marks or ("",) * len(table.rows)
        for row, mark in zip(table.rows, marks, strict=True):
            style = _MARKS.get(mark, "")
            yield from _row(row[:shown], widths, right, style)
            if hang and row[-1]:
                for line in _wrap(row[-1], max(_NARROWEST, width - _INDENT)):
                    yield Line(" " * _INDENT + line, style=style or "dim")


@dataclass(frozen=True)
class Chart:
    """Bars of block characters that fit the console's width; stacked segments differ in shade."""

    bars: Bars

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the bars out for the console's width."""
        chart, width = self.bars, options.max_width
        label = min(max((cell_len(bar.label) for bar in chart.bars), default=0), width // 3)
        note = min(max((cell_len(bar.note) for bar in chart.bars), default=0), width // 3)
        room = max(1, width - label - note - 2 * _GAP)
        longest = max((sum(bar.parts) for bar in chart.bars), default=0.0) or 1.0
        for bar in chart.bars:
            drawn, so_far, cells = "", 0.0, 0
            for index, part in enumerate(bar.parts):
                so_far += part
                end = round(so_far / longest * room)
                drawn += _SHADES[index % len(_SHADES)] * (end - cells)
                cells = end
            name = _cut(middle_cut(bar.label, label), label)
            text = f"{name}{' ' * (label - cell_len(name) + _GAP)}{drawn}{' ' * (room - cells)}"
            yield Line(f"{text}{' ' * _GAP}{_cut(bar.note, note)}".rstrip(), no_wrap=True)
        keys = [f"{_SHADES[i % len(_SHADES)]} {name}" for i, name in enumerate(chart.segments)]
        legend = "  ".join(keys) + ", " if len(keys) > 1 else ""
        for line in _wrap(f"{legend}{chart.unit}", width):
            yield Line(line, style="dim")


def _cut(text: str, width: int) -> str:
    flat = " ".join(text.split())
    while cell_len(flat) > width:
        flat = flat[:-2] + "…" if len(flat) > 1 else ""
    return flat


def _widths(table: Table, columns: int) -> list[int]:
    cells = [table.columns, *table.rows]
    return [max(cell_len(row[index]) for row in cells) for index in range(columns)]


def _shrunk(natural: Sequence[int], width: int) -> list[int]:
    """Take from the widest column until the row fits; below `_NARROWEST` nothing is taken."""
    widths = list(natural)
    room = width - _GAP * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _row(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], style: str
) -> Iterator[Line]:
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for level in range(max(map(len, wrapped))):
        parts = []
        for lines, width, is_right in zip(wrapped, widths, right, strict=True):
            text = lines[level] if level < len(lines) else ""
            space = " " * (width - cell_len(text))
            parts.append(space + text if is_right else text + space)
        joined = (" " * _GAP).join(parts).rstrip()
        yield Line(joined, style=style, no_wrap=True, overflow="ignore")


def _wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns: at spaces, in long words at joints."""
    lines = [""]
    for word in text.split():
        fits = cell_len(word) <= width
        gap = " " if lines[-1] else ""
        for piece in [gap + word] if fits else [gap, *_PIECES.findall(word)]:
            if cell_len(lines[-1] + piece) > width and lines[-1]:
                lines.append("")
                piece = piece.lstrip()
            while cell_len(piece) > width:
                head = next(n for n in range(width, 0, -1) if cell_len(piece[:n]) <= width)
                lines[-1:] = [piece[:head], ""]
                piece = piece[head:]
            lines[-1] += piece
    return [line.rstrip() for line in lines]
