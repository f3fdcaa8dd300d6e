"""What every writer starts from: the sections' blocks in order, and questions about them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ortune.core.plugins import catalog
from ortune.core.section import Bars, Block, Heading, Pill, Pills, Section, Table, Tile, Tiles
from ortune.core.study import Study


@dataclass(frozen=True)
class Part:
    """One section's blocks, and how many of a wide page's twelve columns it takes."""

    name: str
    blocks: tuple[Block, ...]
    order: int = 90
    columns: int = 12


def gather_parts(study: Study, *, terminal: bool = False) -> tuple[Part, ...]:
    """Return a report's parts, for a terminal perhaps; a section without blocks is left out."""
    sections = [catalog.load_plugin(Section, name)() for name in catalog.list_plugins(Section)]
    shown = [section for section in sections if section.terminal or not terminal]
    parts = []
    for section in sorted(shown, key=lambda section: (section.order, section.name())):
        blocks = tuple(section.blocks(study))
        if blocks and section.folded and not terminal:
            blocks = (Heading(section.folded, folded=True), *blocks)
        if blocks:
            parts.append(Part(section.name(), blocks, section.order, section.columns))
    return tuple(parts)


def summarize(pills: Sequence[Pill], tiles: Sequence[Tile]) -> Part:
    """Return the part that a page begins with: answers in a few words, and figures."""
    return Part("summary", (Pills(tuple(pills)), Tiles(tuple(tiles))))


def tabulate_bars(chart: Bars) -> Table:
    """Return a bar chart as a table: label, a column a segment, the notes where there are any."""
    single = len(chart.segments) == 1
    columns = ("", *([chart.unit] if single else [f"{s} ({chart.unit})" for s in chart.segments]))
    noted = any(bar.note for bar in chart.bars)
    rows = tuple(
        (bar.label, *(f"{part:.4g}" for part in bar.parts), *([bar.note] if noted else []))
        for bar in chart.bars
    )
    return Table((*columns, *([""] if noted else [])), rows)


def find_numeric_columns(table: Table) -> tuple[bool, ...]:
    """Say for each column whether it is set to the right: what is in it starts with a digit."""
    places = range(len(table.columns))
    filled = [[row[k] for row in table.rows if row[k] not in ("", "-")] for k in places]
    return tuple(
        bool(cells) and all(cell.lstrip("-+~")[:1].isdigit() for cell in cells) for cells in filled
    )
