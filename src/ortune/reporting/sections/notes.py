"""What was told while the search ran: a terminal has seen it already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.section import Block, Heading, Section, Text
from ortune.core.study import Study


@dataclass(frozen=True)
class NotesSection(Section):
    """What the samples can prove, and what was left out or noticed on the way."""

    order: ClassVar[int] = 55

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield a line a note."""
        # How many samples would prove it the winner's verdict says, by what it lost.
        needed = study.best.score.needed if study.best.score else None
        outlook = study.header.outlook if needed is None else ""
        notes = [text for text in (outlook, *study.notes) if text]
        if notes:
            yield Heading("Notes", folded=True)
            yield from map(Text, notes)
