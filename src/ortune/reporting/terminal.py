"""A report for the terminal: readable at any width and without colour; names stay whole."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text as Line

from ortune.core.progress.wrapping import longest_word, wrap_text
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
from ortune.reporting.blocks import Part, find_numeric_columns, tabulate_bars

_GAP = 2
_INDENT = 4
_WORTH = 24
"""Columns that the last column needs to stay in its row, if it is longer than that."""
_BAR = (12, 80)
"""Columns of the longest bar: where fewer are left its name stands above it, and at most."""
_TONES = {"good": "bold green", "warn": "bold yellow", "code": "cyan", "plain": ""}
_SHADES = "█▒░▓"
_MARKS = {"win": "bold green", "lose": "dim"}


def make_renderables(parts: Sequence[Part]) -> list[RenderableType]:
    """Return what a console prints of some parts; plots but bars are left out for their tables."""
    return [item for part in parts for block in part.blocks for item in _render_block(block)]


def _render_block(block: Block) -> Iterator[RenderableType]:
    match block:
        case Heading(text):
            yield Paragraph(f"\n{text}", "bold")
        case Text(text, "code"):
            yield _make_line(f"  {text}", _TONES["code"])
        case Text(text, tone):
            yield Paragraph(text, _TONES.get(tone, ""))
        case Table():
            yield FittedTable(block)
        case Bars():
            yield BarRows(block)
        case Chart(table=table) | GraphPair(table=table):
            yield FittedTable(table)
        case Scatter() | Intervals() | Lines() | Pills() | Tiles() | Shots():
            return


def _make_line(text: str, style: str = "") -> Line:
    """Return a line that the console prints as it is."""
    return Line(text, style=style, no_wrap=True, overflow="ignore")


@dataclass(frozen=True)
class Paragraph:
    """Text that is broken between words."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Break it for the console's width."""
        for line in wrap_text(self.text, options.max_width):
            yield _make_line(line, self.style)


@dataclass(frozen=True)
class FittedTable:
    """A table that fits, without breaking a word.

    Where it is too wide, cells are broken between words, then the last column hangs below each
    row, then each row becomes its first cell with the others in their columns below.
    """

    table: Table
    # For each column whether it is set to the right; by what is in it where empty.
    right: tuple[bool, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the table out for the console's width."""
        table, width = self.table, options.max_width
        natural, least = _measure_columns(table, cell_len), _measure_columns(table, longest_word)
        remaining = width - sum(natural[:-1]) - _GAP * (len(natural) - 1)
        hang = len(natural) > 1 and remaining < min(natural[-1], _WORTH)
        shown = len(natural) - hang
        marks = table.marks or ("",) * len(table.rows)
        if sum(least[:shown]) + _GAP * (shown - 1) > width:
            yield from _stack_rows(table, natural, least, self._find_right(), width)
            return
        widths = _shrink_widths(natural[:shown], least, width)
        right = self._find_right()[:shown]
        if any(table.columns):
            yield from _render_row(table.columns[:shown], widths, right, "bold")
            yield _make_line("─" * (sum(widths) + _GAP * (shown - 1)), "dim")
        for row, mark in zip(table.rows, marks, strict=True):
            style = _MARKS.get(mark, "")
            yield from _render_row(row[:shown], widths, right, style)
            if hang and row[-1]:
                for line in _wrap_cell(row[-1], width - _INDENT):
                    yield _make_line(" " * _INDENT + line, style or "dim")

    def list_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the table's head, where it has one, and its rows, for what reads a pipe."""
        if any(self.table.columns):
            yield self.table.columns
        yield from self.table.rows

    def _find_right(self) -> tuple[bool, ...]:
        return self.right or find_numeric_columns(self.table)


@dataclass(frozen=True)
class BarRows:
    """Bars of block characters that fit the console's width; stacked segments differ in shade."""

    bars: Bars

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the bars out for the console's width."""
        chart, width = self.bars, options.max_width
        names = [" ".join(bar.label.split()) for bar in chart.bars]
        notes = [" ".join(bar.note.split()) for bar in chart.bars]
        label, note = (max(map(cell_len, texts), default=0) for texts in (names, notes))
        room = width - label - note - 2 * _GAP
        beside = room >= _BAR[0]
        drawn = _draw_bars(chart, max(1, min(room if beside else width, _BAR[1])))
        for name, bar, caption in zip(names, drawn, notes, strict=True):
            if beside:
                space = " " * (label + _GAP - cell_len(name))
                yield _make_line(f"{name}{space}{bar}{' ' * _GAP}{caption}".rstrip())
            else:
                yield Paragraph(f"{name}  {caption}".rstrip())
                yield _make_line(bar.rstrip())
        keys = [f"{_SHADES[i % len(_SHADES)]} {name}" for i, name in enumerate(chart.segments)]
        legend = "  ".join(keys) + ", " if len(keys) > 1 else ""
        yield Paragraph(f"{legend}{chart.unit}", "dim")

    def list_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the figures, for what reads a pipe."""
        yield from FittedTable(tabulate_bars(self.bars)).list_rows()


def _draw_bars(chart: Bars, room: int) -> list[str]:
    """Draw every bar, filled with spaces to the longest."""
    longest = max((sum(bar.parts) for bar in chart.bars), default=0.0) or 1.0
    lines = []
    for bar in chart.bars:
        drawn, so_far = "", 0.0
        for index, part in enumerate(bar.parts):
            so_far += part
            end = round(so_far / longest * room)
            drawn += _SHADES[index % len(_SHADES)] * (end - len(drawn))
        lines.append(drawn.ljust(room))
    return lines


def _measure_columns(table: Table, width: Callable[[str], int]) -> list[int]:
    cells = [table.columns, *table.rows]
    return [max(width(row[index]) for row in cells) for index in range(len(table.columns))]


def _shrink_widths(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Take from the widest column that may give until the row fits; no word is broken."""
    widths = list(natural)
    room = width - _GAP * (len(widths) - 1)
    while sum(widths) > room:
        giving = [
            index for index, column_width in enumerate(widths) if column_width > least[index]
        ]
        if not giving:
            break
        widths[max(giving, key=widths.__getitem__)] -= 1
    return widths


def _render_row(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], style: str
) -> Iterator[Line]:
    broken = [_wrap_cell(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for level in range(max(map(len, broken))):
        parts = []
        for lines, width, is_right in zip(broken, widths, right, strict=True):
            text = lines[level] if level < len(lines) else ""
            space = " " * (width - cell_len(text))
            parts.append(space + text if is_right else text + space)
        yield _make_line((" " * _GAP).join(parts).rstrip(), style)


def _wrap_cell(text: str, width: int) -> list[str]:
    """Break a cell; spaces at the start of a line of it would not be where they stood."""
    return wrap_text(" ".join(text.split()), width)


def _stack_rows(
    table: Table, natural: Sequence[int], least: Sequence[int], right: Sequence[bool], width: int
) -> Iterator[Line]:
    """Write each row as its first cell, and below it the others in columns, in lines that fit."""
    room, groups = width - _INDENT, [[1]] if len(natural) > 1 else []
    for column in range(2, len(natural)):
        row_columns = [*groups[-1], column]
        if sum(least[k] for k in row_columns) + _GAP * (len(row_columns) - 1) <= room:
            groups[-1] = row_columns
        else:
            groups.append([column])
    widths = [_shrink_widths([natural[k] for k in g], [least[k] for k in g], room) for g in groups]
    marks = table.marks or ("",) * len(table.rows)
    heads = [(table.columns, "bold")] if any(table.columns) else []
    styled = [(row, _MARKS.get(mark, "")) for row, mark in zip(table.rows, marks, strict=True)]
    for place, (row, style) in enumerate((*heads, *styled)):
        if place == len(heads) and heads:
            yield _make_line("─" * width, "dim")
        for line in _wrap_cell(row[0], width):
            yield _make_line(line, style)
        for group, sizes in zip(groups, widths, strict=True):
            cells = [row[k] for k in group]
            if any(cells):
                for drawn in _render_row(cells, sizes, [right[k] for k in group], style or "dim"):
                    yield _make_line(" " * _INDENT + drawn.plain, style or "dim")
