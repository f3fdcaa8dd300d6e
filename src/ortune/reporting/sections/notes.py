"""What was told while the search ran: a terminal has seen it already."""

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
        # How many samples a proof needs is said once: the verdict knows it from what was measured.
        is_changed = study.best.key != study.baseline.key
        shown = [*study.undecided[:1], *[study.best] * is_changed]
        is_in_verdict = any(trial.score and trial.score.needed for trial in shown)
        notes = [
            text for text in ("" if is_in_verdict else study.header.outlook, *study.notes) if text
        ]
        if notes:
            yield Heading("Notes", folded=True)
            yield from map(Text, notes)
