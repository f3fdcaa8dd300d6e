"""How far the machine could be trusted while it measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.wording import format_count


@dataclass(frozen=True)
class NoiseSection(Section):
    """What disturbed the run and what to change; then the readings over the whole run."""

    order: ClassVar[int] = 60

    def blocks(self, study: Study) -> Iterable[Block]:
        if not study.noise:
            return
        summary = "nothing disturbed it"
        if study.advice:
            summary = format_count(len(study.advice), "disturbance")
        yield Heading(f"Noise: {summary}", folded=True)
        for text in study.advice:
            yield Text(text[:1].upper() + text[1:] + ".", "warn")
        yield Table(("reading", "value"), tuple(study.noise.items()))
