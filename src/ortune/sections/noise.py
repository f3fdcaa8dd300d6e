"""How far the machine could be trusted while it measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.section import Block, Heading, Section, Table
from ortune.core.study import Study


@dataclass(frozen=True)
class Noise(Section):
    """Readings taken before and after; an A/A ratio away from 1 says that numbers may be off."""

    order: ClassVar[int] = 60

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the readings."""
        if study.noise:
            yield Heading("Noise")
            yield Table(("reading", "value"), tuple(study.noise.items()))
